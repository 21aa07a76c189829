//! Runs every example: each checks what it shows, and ends with an error if that is not so.

use std::process::Command;

fn run(program: &str) {
    let output = Command::new(program).output().expect("the example starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program}: {}\n{out}{err}", output.status);
    print!("{out}");
}

macro_rules! examples {
    ($($test:ident: $program:literal,)*) => {
        $(
            #[test]
            fn $test() {
                run(env!(concat!("CARGO_BIN_EXE_", $program)));
            }
        )*
    };
}

examples! {
    a_file_that_others_change_is_seen_as_it_is: "outside",
    a_lying_network_harms_no_byte: "network",
    values_outlive_the_file_that_they_were_read_from: "key_value",
    a_runtime_reads_without_being_blocked: "runtime",
    ten_thousand_tasks_share_two_threads: "tasks",
    exports_come_and_go_beside_clients_at_work: "exports",
}
