//! Runs scripts of several sessions over one simulated device: by text, by plan and by template, with files that change
//! between statements.
//!
//!   cargo run --example sessions -- engine/tests/sessions/folders.sessions
//!   cargo run --example sessions -- --set debug_sim_seed=7 FILE…          options of all sessions, without "millpond."
//!
//! The form of a script is described in `driver.rs`.

mod driver;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let (mut files, mut options) = (Vec::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--set" => match arguments.next().and_then(|set| set.split_once('=').map(own)) {
                Some(option) => options.push(option),
                None => return usage(),
            },
            _ => files.push(argument),
        }
    }
    if files.is_empty() {
        return usage();
    }
    let options: Vec<(&str, &str)> = options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let mut failed = false;
    for file in &files {
        let ran = match std::fs::read_to_string(file) {
            Ok(text) => driver::run(file, &text, &options).await,
            Err(error) => Err(format!("{file}: {error}")),
        };
        match ran {
            Ok(done) => println!(
                "{file}: {} statements; {} plans of their own were found, {} by template",
                done.statements, done.kept, done.by_template
            ),
            Err(why) => {
                eprintln!("{why}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn own((key, value): (&str, &str)) -> (String, String) {
    (key.to_string(), value.to_string())
}

fn usage() -> ExitCode {
    eprintln!("usage: sessions [--set OPTION=VALUE]… FILE…");
    ExitCode::from(2)
}
