//! `octavo-s3-stub`: the server of tests as a program, for measurements and for other languages.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use octavo_s3_stub::{Lie, Lies, Stub, StubConfig};

const HELP: &str = "\
usage: octavo-s3-stub [OPTION VALUE]..
Serves objects as S3 does, in path style, and counts requests. Ends when its input ends.

  --listen ADDRESS     where to listen (127.0.0.1:9000)
  --directory PATH     serves the files below PATH, read only: its folders are the buckets.
                       Without it, objects are in memory, and can be written
  --first-byte-ms N    holds every answer to a HEAD, GET or listing back
  --versions yes       keeps all versions of objects, and names them
  --threads N          threads that serve requests (1)
  --lies PERCENT       so many answers to HEADs and GETs are wrong, broken or late
  --seed N             which ones (1)

GET /-/counts prints the counts, DELETE /-/counts sets them to zero.";

struct Options {
    config: StubConfig,
    percent: f64,
    seed: u64,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| matches!(word.as_str(), "-h" | "--help" | "help")) {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match parse(&words).and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("octavo-s3-stub: {what}");
            ExitCode::from(2)
        }
    }
}

fn parse(words: &[String]) -> Result<Options, String> {
    let listen = "127.0.0.1:9000".parse().expect("an address");
    let config = StubConfig { listen, ..StubConfig::default() };
    let mut options = Options { config, percent: 0.0, seed: 1 };
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
        let wrong = || format!("{name}: {value:?} is not possible");
        let number = || value.parse::<u64>().map_err(|_| wrong());
        match name.as_str() {
            "--listen" => options.config.listen = value.parse().map_err(|_| wrong())?,
            "--directory" => options.config.directory = Some(value.into()),
            "--first-byte-ms" => options.config.first_byte = Duration::from_millis(number()?),
            "--versions" => options.config.version_ids = value == "yes",
            "--threads" => options.config.threads = number()? as usize,
            "--lies" => options.percent = value.parse().map_err(|_| wrong())?,
            "--seed" => options.seed = number()?,
            _ => return Err(format!("{name} is no option\n{HELP}")),
        }
    }
    if !(0.0..=100.0).contains(&options.percent) {
        return Err("--lies is a percentage".into());
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), String> {
    let stub = Stub::start_with(options.config.clone()).map_err(|error| error.to_string())?;
    if options.percent > 0.0 {
        let kinds = lies();
        let each = options.percent / 100.0 / kinds.len() as f64;
        stub.set_lies(Lies::random(options.seed, kinds.into_iter().map(|lie| (lie, each)).collect()));
    }
    println!("{}", stub.endpoint());
    // The end of the input: whoever started the server has ended.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).map_err(|error| error.to_string())?;
    print!("{}", stub.counts());
    Ok(())
}

fn lies() -> Vec<Lie> {
    vec![
        Lie::ClosedEarly,
        Lie::Short,
        Lie::Long,
        Lie::OtherRange,
        Lie::WholeObject,
        Lie::IfMatchIgnored,
        Lie::OldVersion,
        Lie::OtherTag,
        Lie::Status { code: 500, retry_after_s: None },
        Lie::Status { code: 503, retry_after_s: Some(1) },
        Lie::ResetBefore,
        Lie::ResetInside,
        Lie::StallBefore(Duration::from_secs(60)),
        Lie::StallInside(Duration::from_secs(60)),
    ]
}
