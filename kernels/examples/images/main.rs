//! `cargo images [--check] [NAME…]`: compiles `cuda/*.cu` to the PTX in `images/`.
//!
//!   cuda/NAME.cu ──NVRTC 12.2──► PTX ──strip, check──► images/NAME.ptx ──ptxas -v──► images/resources.txt
//!
//! Needs      only for changes to a `.cu`: a Python (MILLPOND_PYTHON, else python3) with these wheels from PyPI:
//!            pip install nvidia-cuda-nvrtc-cu12==12.2.140 nvidia-cuda-runtime-cu12==12.2.140 \
//!                        nvidia-cuda-cccl-cu12==12.9.27 nvidia-cuda-nvcc-cu12==12.2.140
//! --check    writes nothing, and fails if an image differs from its compiled source.

mod recipe;

use millpond_kernels::image::{DEFINES, IMAGES, OPTIONS};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

const WHEELS: &str = "nvidia-cuda-nvrtc-cu12==12.2.140 nvidia-cuda-runtime-cu12==12.2.140 \
                      nvidia-cuda-cccl-cu12==12.9.27 nvidia-cuda-nvcc-cu12==12.2.140";
/// Architecture whose registers and spills are recorded: that of the reference device.
const RESOURCES_FOR: &str = "sm_90";

fn main() -> ExitCode {
    match run(env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut names: Vec<String>) -> Result<(), String> {
    let check = names.iter().any(|name| name == "--check");
    names.retain(|name| name != "--check");
    for name in &names {
        // A new source can be compiled before it is in the list of images.
        if !recipe::sources().join(format!("{name}.cu")).exists() {
            return Err(format!("there is no source {name}.cu in {}", recipe::sources().display()));
        }
    }
    if names.is_empty() {
        names = IMAGES.iter().map(|image| image.name.to_string()).collect();
    }
    let mut different = Vec::new();
    for name in &names {
        let source = recipe::sources().join(format!("{name}.cu"));
        let mut arguments = vec!["ptx".to_string(), source.display().to_string()];
        arguments.extend(OPTIONS.iter().map(ToString::to_string));
        arguments.extend(DEFINES.iter().map(|(name, value)| format!("-D{name}={value}")));
        let image = recipe::image(name, &compiler(&arguments)?).map_err(|message| format!("{name}: {message}"))?;
        let path = image_path(name);
        if fs::read_to_string(&path).is_ok_and(|old| old == image) {
            println!("{name}: unchanged");
            continue;
        }
        different.push(name.as_str());
        if !check {
            fs::write(&path, &image).map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{name}: {} lines", image.lines().count());
        }
    }
    if check && !different.is_empty() {
        return Err(format!("these images differ from their sources: {}; run `cargo images`", different.join(", ")));
    }
    if !check {
        let path = image_path("").with_file_name("resources.txt");
        fs::write(&path, resources()?).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn image_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("images").join(format!("{name}.ptx"))
}

/// Runs the script beside the sources and returns its output.
fn compiler(arguments: &[String]) -> Result<String, String> {
    let python = env::var("MILLPOND_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let done = Command::new(&python).arg(recipe::sources().join("compile.py")).args(arguments).output();
    let done = done.map_err(|error| format!("{python}: {error}; set MILLPOND_PYTHON"))?;
    let log = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() {
        return Err(format!("{log}\nthe compilers are wheels: {python} -m pip install {WHEELS}"));
    }
    eprint!("{log}");
    String::from_utf8(done.stdout).map_err(|_| "the compiler wrote no text".to_string())
}

/// One line per kernel and function of all images: registers, shared bytes, stack, spills.
fn resources() -> Result<String, String> {
    let mut arguments = vec!["resources".to_string(), RESOURCES_FOR.to_string()];
    arguments.extend(IMAGES.iter().map(|image| image_path(image.name).display().to_string()));
    let mut text = format!("# ptxas -arch={RESOURCES_FOR} -v of every image: bytes per thread block and thread\n");
    text += "# spills of a few words are callee-saved registers around out-of-line functions\n";
    text += "# kernel or function                registers   shared    stack  spilled\n";
    let (mut name, mut stack, mut spilled) = (String::new(), 0, 0);
    let number_before = |line: &str, what: &str| -> u64 {
        line.split(", ").find_map(|part| part.trim().strip_suffix(what)?.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    };
    let entry = |name: &str, registers: &str, shared: u64, stack: u64, spilled: u64| {
        format!("{:<36} {registers:>9} {shared:>8} {stack:>8} {spilled:>8}\n", plain_name(name))
    };
    let mut is_kernel = false;
    for line in compiler(&arguments)?.lines() {
        if let Some(image) = line.strip_prefix("image ") {
            text += &format!("\n{image}\n");
        } else if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            name = rest.split('\'').next().unwrap_or("").to_string();
            is_kernel = true;
        } else if let Some((_, function)) = line.split_once("Function properties for ") {
            is_kernel = is_kernel && function == name;
            name = function.to_string();
        } else if line.contains("bytes stack frame") {
            stack = number_before(line, " bytes stack frame");
            spilled = number_before(line, " bytes spill stores");
            if !is_kernel {
                text += &entry(&name, "-", 0, stack, spilled);
            }
        } else if let Some((_, used)) = line.split_once("Used ") {
            let registers = used.split(' ').next().unwrap_or("?");
            text += &entry(&name, registers, number_before(used, " bytes smem"), stack, spilled);
            is_kernel = false;
        }
    }
    Ok(text)
}

/// `_ZN37_INTERNAL_00000000_7_sort_cu_2020f97e13leading_bytesERK4View` is `leading_bytes`.
fn plain_name(symbol: &str) -> String {
    let mut rest =
        symbol.strip_prefix("_ZN").or(symbol.strip_prefix("_ZL")).or(symbol.strip_prefix("_Z")).unwrap_or("");
    let mut last = symbol;
    loop {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let Ok(length) = rest[..digits].parse::<usize>() else { return last.to_string() };
        let Some(part) = rest.get(digits..digits + length) else { return last.to_string() };
        last = part;
        rest = &rest[digits + length..];
    }
}
