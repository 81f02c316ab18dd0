//! The sorted names that a shared library (ELF, 64-bit, little endian) exports.

/// Panics if `library` is not such a file.
pub fn of(library: &[u8]) -> Vec<String> {
    let number = |at: usize, bytes: usize| {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(&library[at..at + bytes]);
        u64::from_le_bytes(value) as usize
    };
    assert_eq!(library[..6], *b"\x7fELF\x02\x01", "a library of this machine");
    let (headers, header_bytes, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    const DYNSYM: usize = 11;
    let section = |index: usize| headers + index * header_bytes;
    let symbols = (0..count).map(section).find(|&at| number(at + 4, 4) == DYNSYM).expect("dynamic symbols");
    let names = number(section(number(symbols + 0x28, 4)) + 0x18, 8);
    let (start, bytes, entry_bytes) = (number(symbols + 0x18, 8), number(symbols + 0x20, 8), number(symbols + 0x38, 8));
    let mut defined: Vec<String> = (start..start + bytes)
        .step_by(entry_bytes)
        // Symbols of section 0 are undefined: another library must define them.
        .filter(|entry| number(entry + 6, 2) != 0)
        .map(|entry| {
            let name = &library[names + number(entry, 4)..];
            let end = name.iter().position(|&byte| byte == 0).expect("names end");
            String::from_utf8_lossy(&name[..end]).into_owned()
        })
        .collect();
    defined.sort_unstable();
    defined
}
