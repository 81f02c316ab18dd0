//! From a source to its image: the hashed inputs, and the processing of the compiler's text.
//!
//!   files · options · defines ──► SHA-256 ──► header
//!   NVRTC's PTX ──► parse ──► strip unreachable items ──► check ──► print behind the header

use millpond_kernels::image::{DEFINES, OPTIONS};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folder of the sources.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda")
}

/// A source and the headers it includes, by name, once each, in order of first inclusion.
fn files(name: &str) -> io::Result<Vec<(String, String)>> {
    let mut files: Vec<(String, String)> = Vec::new();
    let mut open = vec![format!("{name}.cu")];
    while let Some(file) = open.pop() {
        if files.iter().any(|(known, _)| *known == file) {
            continue;
        }
        let text = fs::read_to_string(sources().join(&file))?;
        let included = |line: &str| Some(line.strip_prefix("#include \"")?.strip_suffix('"')?.to_string());
        open.extend(text.lines().filter_map(|line| included(line.trim_end())));
        files.push((file, text));
    }
    Ok(files)
}

/// Hash of everything that determines the image of `name`, except the compiler itself.
///
/// # Errors
/// If a source or one of our headers cannot be read.
pub fn source_hash(name: &str) -> io::Result<String> {
    let mut hash = Sha256::new();
    let files = files(name)?;
    for (file, text) in &files {
        hash.update(format!("{file} {}\n{text}", text.len()));
    }
    let text: String = files.into_iter().map(|(_, text)| text).collect();
    for (define, value) in DEFINES.iter().filter(|(define, _)| text.contains(define)) {
        hash.update(format!("{define}={value}\n"));
    }
    for option in OPTIONS {
        hash.update(format!("{option}\n"));
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Builds the image of `name` from the compiler's text.
///
/// # Errors
/// A sentence: the text is not PTX that this project allows in device code.
pub fn image(name: &str, compiled: &str) -> Result<String, String> {
    let mut module = millpond_ptx::parse(compiled).map_err(|error| error.to_string())?;
    millpond_ptx::strip(&mut module);
    millpond_ptx::check(&module).map_err(|error| error.to_string())?;
    let hash = source_hash(name).map_err(|error| error.to_string())?;
    Ok(format!("// Compiled from cuda/{name}.cu by `cargo images`; do not edit.\n// sources {hash}\n{module}"))
}
