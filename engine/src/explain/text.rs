//! Text lines of at most [`WIDTH`] terminal columns.
//!
//!   cut      one line:  DeviceFilterExec: l_shipdate@3 > 1995-03-15, proj…
//!   wrapped  as many lines as needed, continuation lines indented

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Maximum width of a line of EXPLAIN in terminal columns.
pub(super) const WIDTH: usize = 120;

/// `text` without line breaks and other control characters, cut to `width` columns.
pub(super) fn cut(text: &str, width: usize) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if plain.width() <= width {
        return plain;
    }
    let (mut kept, mut taken) = (String::new(), 0);
    for c in plain.chars() {
        let columns = c.width().unwrap_or(0);
        if taken + columns + 1 > width {
            break;
        }
        kept.push(c);
        taken += columns;
    }
    let kept = kept.trim_end();
    if width == 0 { String::new() } else { format!("{kept}…") }
}

/// `text` truncated or padded with blanks to `width` columns.
pub(super) fn padded(text: &str, width: usize) -> String {
    let mut text = cut(text, width);
    text.extend(std::iter::repeat_n(' ', width.saturating_sub(text.width())));
    text
}

/// A non-breaking blank.
const GLUE: &str = "\u{a0}";

/// A sum, "plan 1.200 ms + wait 0.300 ms = 1.500 ms", that [`wrapped`] breaks only after a sign.
pub(super) fn glued(sum: &str) -> String {
    let glued = sum.replace(' ', GLUE);
    glued
        .replace(&format!("{GLUE}+{GLUE}"), &format!("{GLUE}+ "))
        .replace(&format!("{GLUE}={GLUE}"), &format!("{GLUE}= "))
}

/// `text` after `head` in lines of [`WIDTH`] columns, broken at blanks; continuation lines are aligned with the text.
pub(super) fn wrapped(head: &str, text: &str) -> Vec<String> {
    let indent = head.width().min(WIDTH / 2);
    let (mut lines, mut line) = (vec![], head.to_string());
    let mut is_empty = true;
    for word in text.split([' ', '\n', '\t']).filter(|word| !word.is_empty()) {
        let word = cut(word, WIDTH - indent);
        if !is_empty && line.width() + 1 + word.width() > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(&word);
        is_empty = false;
    }
    lines.push(line);
    lines.iter().map(|line| line.replace(GLUE, " ")).collect()
}

/// A count with a comma between thousands.
pub fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_text_ends_in_an_ellipsis_and_fits() {
        assert_eq!(cut("a short text", 12), "a short text");
        assert_eq!(cut("a short text", 8), "a short…");
        assert_eq!(cut("two\nlines", 20), "two lines");
        // Wide characters take two columns.
        assert_eq!(cut("日本語の列", 6), "日本…");
        assert_eq!(padded("日本語", 8), "日本語  ");
        assert_eq!(cut("x", 0), "");
    }

    #[test]
    fn wrapped_lines_fit_and_lose_no_word() {
        let text = "word ".repeat(60);
        let lines = wrapped("reasons  ", &text);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.width() <= WIDTH), "{lines:?}");
        assert_eq!(lines.join(" ").matches("word").count(), 60);
        assert!(lines[1].starts_with("         word"), "{lines:?}");
        assert_eq!(wrapped("head", ""), ["head"]);
        let sum = format!("{} = 12.000 ms", ["plan 1.200 ms"; 12].join(" + "));
        let lines = wrapped("wall: ", &glued(&sum));
        assert!(lines.len() > 1 && lines.iter().all(|line| line.width() <= WIDTH), "{lines:?}");
        assert!(lines[0].ends_with(" ms +"), "{lines:?}");
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1000, 60_175, 6_001_215].map(thousands), ["0", "999", "1,000", "60,175", "6,001,215"]);
    }
}
