//! Requests of a driver, one after the other.

use crate::driver::Rig;
use octavo_block::VhostSettings;

#[test]
fn what_a_guest_writes_it_reads_again() {
    let rig = Rig::new(16 << 20, VhostSettings::default());
    let mut driver = rig.driver(1);
    let bytes: Vec<u8> = (0..100 * 512).map(|at: u32| (at * 7 % 251) as u8).collect();
    driver.write(512, &bytes);
    assert_eq!(driver.read(512, bytes.len()), bytes);
    let mut found = vec![0; bytes.len()];
    rig.object.read_at(512, &mut found).unwrap();
    assert_eq!(found, bytes);
    assert_eq!(driver.read(0, 512), vec![0; 512]);
}
