//! Objects as streams, by the traits of futures-io and of tokio.

use std::future::poll_fn;
use std::io::{ErrorKind, SeekFrom};
use std::pin::Pin;

use futures_io::{AsyncRead, AsyncSeek};
use octavo::CacheMode;
use octavo_async::{DriverConfig, Reader};
use octavo_random::Random;

use crate::fixture::{PAGE, Scene, block_on, poll_once, scene, until, watch};

const PAGES: u64 = 300;

async fn read(reader: &mut Reader, buffer: &mut [u8]) -> usize {
    poll_fn(|context| Pin::new(&mut *reader).poll_read(context, buffer)).await.unwrap()
}

async fn seek(reader: &mut Reader, to: SeekFrom) -> std::io::Result<u64> {
    poll_fn(|context| Pin::new(&mut *reader).poll_seek(context, to)).await
}

/// An object whose words are their own numbers.
fn filled() -> (Scene, Vec<u8>) {
    let scene = scene(PAGES, CacheMode::Writethrough, DriverConfig::default());
    let bytes: Vec<u8> = (0..PAGES * PAGE / 4).flat_map(|word| (word as u32).to_le_bytes()).collect();
    block_on(scene.object.write_bytes_at(0, bytes.clone().into())).unwrap();
    (scene, bytes)
}

/// Random reads and seeks, some of which are given up, return the bytes at their positions.
#[test]
fn a_reader_returns_the_bytes_at_its_position() {
    let _watch = watch(60);
    let (Scene { object, partition, driver: _driver, .. }, bytes) = filled();
    let end = PAGES * PAGE;
    let (mut reader, mut random) = (object.reader(), Random::new(3));
    let mut buffer = vec![0; 20_000];
    for step in 0..3000 {
        let most = [100, 5000, 20_000][random.below(3) as usize];
        let len = 1 + random.below(most) as usize;
        match random.below(8) {
            0 => {
                let to = random.below(end + 5000);
                let from = [
                    SeekFrom::Start(to),
                    SeekFrom::Current(to as i64 - reader.position() as i64),
                    SeekFrom::End(to as i64 - end as i64),
                ];
                assert_eq!(block_on(seek(&mut reader, from[random.below(3) as usize])).unwrap(), to);
            }
            1 => _ = partition.evict(),
            2 => {
                let position = reader.position();
                let mut read = Box::pin(read(&mut reader, &mut buffer[..len]));
                let is_ready = poll_once(read.as_mut()).is_ready();
                drop(read);
                assert_eq!(is_ready && position < end, reader.position() > position);
            }
            _ => {
                let position = reader.position() as usize;
                let got = block_on(read(&mut reader, &mut buffer[..len]));
                assert_eq!(got == 0, position >= end as usize, "step {step}");
                assert_eq!(buffer[..got], bytes[position.min(bytes.len())..][..got], "step {step}");
            }
        }
    }
    let before = block_on(seek(&mut reader, SeekFrom::Start(5))).unwrap() as i64;
    let error = block_on(seek(&mut reader, SeekFrom::Current(-before - 1))).unwrap_err();
    assert_eq!((error.kind(), reader.position()), (ErrorKind::InvalidInput, 5));
}

#[test]
fn tokio_reads_and_seeks_too() {
    use tokio::io::{AsyncReadExt, AsyncSeekExt};
    let _watch = watch(60);
    let (Scene { object, partition, driver: _driver, .. }, bytes) = filled();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        partition.evict().unwrap();
        let mut reader = object.reader();
        let mut all = Vec::new();
        reader.read_to_end(&mut all).await.unwrap();
        assert!(all == bytes);
        assert_eq!(reader.seek(SeekFrom::Start(12)).await.unwrap(), 12);
        assert_eq!(reader.read_u32_le().await.unwrap(), 3);
    });
}

/// Hits of a sequential reader have the next window read before it gets there.
#[test]
fn a_reader_is_read_ahead() {
    let _watch = watch(60);
    let (Scene { object, partition, driver, .. }, bytes) = filled();
    partition.evict().unwrap();
    let (mut reader, mut buffer, mut waits) = (object.reader(), [0; PAGE as usize], 0);
    for page in 0..PAGES as usize {
        let mut read = Box::pin(read(&mut reader, &mut buffer));
        if poll_once(read.as_mut()).is_pending() {
            waits += 1;
            block_on(read);
        } else {
            drop(read);
        }
        assert!(buffer == bytes[page * PAGE as usize..][..PAGE as usize]);
        // The store is as fast as it needs to be to be ahead of this loop.
        until(|| driver.stat().running + driver.stat().waiting == 0);
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    assert!(waits < 30, "{waits} of {PAGES} reads waited");
}
