//! Runs forms on a device: one small kernel per form, several forms per module.
//!
//! ```text
//!   operands  │ a₀ a₁ … │ b₀ b₁ … │     one 64-bit word each             thread i:  ld a[i], b[i]
//!   results   │ d₀ d₁ … │ e₀ e₁ … │                                               the instruction
//!                                                                                  st d[i], e[i]
//! ```
//!
//! Carry      an addition (a subtraction for `subc`) sets the flag before the instruction, another reads it afterwards.
//! Refused    if the driver rejects a module, its forms are tried one by one, so that one bad form does not affect the
//!            others.

use std::fmt::Write;

use millpond_memory::checks::{CheckError, CheckRig};
use millpond_memory::{Device, DeviceBuffer};

use super::forms::{Form, Shape};
use super::operands::operands;
use crate::{Launch, LaunchConfig};

/// Forms per module: a driver's assembler takes a second for a few hundred of them.
const FORMS_PER_MODULE: usize = 32;

/// Results of a form: one list of bits per result.
pub type Results = Vec<Vec<u64>>;

/// Results of each form, or the device's reason for rejecting it.
///
/// # Errors
/// Errors of the device, except the rejection of forms.
pub fn run(device: &Device, forms: &[Form]) -> Result<Vec<Result<Results, String>>, CheckError> {
    let rig = CheckRig::new(device)?;
    let mut all = Vec::with_capacity(forms.len());
    for batch in forms.chunks(FORMS_PER_MODULE) {
        match together(&rig, batch) {
            Ok(results) => all.extend(results.into_iter().map(Ok)),
            Err(error) if device.is_lost() => return Err(error),
            Err(_) => {
                for form in batch {
                    match together(&rig, std::slice::from_ref(form)) {
                        Ok(mut results) => all.extend(results.pop().map(Ok)),
                        Err(error) if device.is_lost() => return Err(error),
                        Err(error) => all.push(Err(error.to_string())),
                    }
                }
            }
        }
    }
    rig.finish()?;
    Ok(all)
}

fn together(rig: &CheckRig, forms: &[Form]) -> Result<Vec<Results>, CheckError> {
    let inputs: Vec<Vec<Vec<u64>>> = forms.iter().map(operands).collect();
    let module = rig.device.load_module(&text(forms))?;
    let on = &rig.streams[0];
    let words: Vec<u8> = inputs.iter().flatten().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let input = rig.upload(&words, on)?;
    let output_words: usize = forms.iter().zip(&inputs).map(|(form, input)| form.results.len() * input[0].len()).sum();
    let output = DeviceBuffer::zeroed(output_words * 8, on, &rig.pool)?;
    let (mut read, mut written) = (0, 0);
    for (number, (form, input_of)) in forms.iter().zip(&inputs).enumerate() {
        let count = input_of[0].len();
        let (reads, writes) = (8 * count * form.sources.len(), 8 * count * form.results.len());
        Launch::new(&module.kernel(&kernel_name(number))?, LaunchConfig::linear(1, count as u32))
            .read(&input.view(read..read + reads)?)
            .write(&output.view(written..written + writes)?)
            .submit(on)?;
        (read, written) = (read + reads, written + writes);
    }
    let results = rig.download(&output, on)?;
    let (words, _) = results.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let column = |count: usize, words: &mut dyn Iterator<Item = u64>| words.take(count).collect::<Vec<u64>>();
    let results = forms.iter().zip(&inputs);
    Ok(results.map(|(form, input)| form.results.iter().map(|_| column(input[0].len(), &mut words)).collect()).collect())
}

fn kernel_name(number: usize) -> String {
    format!("form_{number}")
}

/// One module with a kernel for each form.
pub fn text(forms: &[Form]) -> String {
    let mut text = ".version 8.2\n.target sm_70\n.address_size 64\n".to_string();
    for (number, form) in forms.iter().enumerate() {
        kernel(&mut text, &kernel_name(number), form).expect("a string takes all");
    }
    text
}

fn register(bits: u32, name: &str) -> String {
    match bits {
        1 => format!("\t.reg .pred %{name};\n"),
        _ => format!("\t.reg .b{bits} %{name};\n"),
    }
}

fn kernel(text: &mut String, name: &str, form: &Form) -> std::fmt::Result {
    let rows = operands(form)[0].len();
    writeln!(text, "\n// {}\n.visible .entry {name}(.param .u64 operands, .param .u64 results)\n{{", form.name)?;
    text.push_str("\t.reg .b32 %thread, %word;\n\t.reg .b64 %in, %out;\n");
    for (k, source) in form.sources.iter().enumerate() {
        text.push_str(&register(source.bits, &format!("s{k}")));
    }
    for (k, bits) in form.results.iter().enumerate() {
        text.push_str(&register(*bits, &format!("d{k}")));
    }
    text.push_str("\tmov.u32 %thread, %tid.x;\n\tld.param.u64 %in, [operands];\n\tld.param.u64 %out, [results];\n");
    text.push_str("\tmad.wide.u32 %in, %thread, 8, %in;\n\tmad.wide.u32 %out, %thread, 8, %out;\n");
    for (k, source) in form.sources.iter().enumerate() {
        let at = format!("[%in+{}]", 8 * rows * k);
        match source.bits {
            1 => writeln!(text, "\tld.global.b32 %word, {at};\n\tsetp.ne.u32 %s{k}, %word, 0;")?,
            bits => writeln!(text, "\tld.global.b{bits} %s{k}, {at};")?,
        }
    }
    instruction(text, form)?;
    for (k, bits) in form.results.iter().enumerate() {
        let at = format!("[%out+{}]", 8 * rows * k);
        match (bits, form.shape) {
            (1, Shape::Carry { .. }) => {}
            (1, _) => writeln!(text, "\tselp.b32 %word, 1, 0, %d{k};\n\tst.global.b32 {at}, %word;")?,
            (bits, _) => writeln!(text, "\tst.global.b{bits} {at}, %d{k};")?,
        }
    }
    text.push_str("\tret;\n}\n");
    Ok(())
}

fn instruction(text: &mut String, form: &Form) -> std::fmt::Result {
    let names = |letter: char, count: usize| (0..count).map(|k| format!("%{letter}{k}")).collect::<Vec<_>>().join(", ");
    let (opcode, sources, results) = (&form.opcode, form.sources.len(), form.results.len());
    match form.shape {
        Shape::Plain => writeln!(text, "\t{opcode} {}, {};", names('d', results), names('s', sources)),
        Shape::Pack => writeln!(text, "\t{opcode} %d0, {{{}}};", names('s', sources)),
        Shape::Unpack => writeln!(text, "\t{opcode} {{{}}}, %s0;", names('d', results)),
        Shape::Carry { reads, writes } => {
            let plain = sources - usize::from(reads);
            let bits = form.results[0];
            // Subtractions set the flag as a borrow, additions as a carry.
            let step = if opcode.starts_with("sub") { "sub" } else { "add" };
            writeln!(text, "\t.reg .b{bits} %made, %flag;")?;
            match (reads, step) {
                (false, _) => {}
                (true, "sub") => writeln!(text, "\tsub.cc.u{bits} %made, 0, %s{plain};")?,
                (true, _) => writeln!(text, "\tadd.cc.u{bits} %made, %s{plain}, {};", u64::MAX >> (64 - bits))?,
            }
            writeln!(text, "\t{opcode} %d0, {};", names('s', plain))?;
            if writes {
                writeln!(text, "\t{step}c.u{bits} %flag, 0, 0;\n\tand.b{bits} %flag, %flag, 1;")?;
                writeln!(text, "\tst.global.b{bits} [%out+{}], %flag;", 8 * operands(form)[0].len())?;
            }
            Ok(())
        }
    }
}
