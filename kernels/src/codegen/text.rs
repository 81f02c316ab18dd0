//! Texts in registers and in records: helper functions of the text image, pasted into the calling module.
//!
//! ```text
//!   "lemon"                  words of a key   hash │ 5, "lemo" │ "n"
//!   "pomegranate juice"                       hash │ 17, "pome" │ address of its bytes
//! ```
//!
//! Equal    texts have equal hashes and equal first view words; their second view words are equal, or point to equal
//!          bytes.
//! Lifetime a table of such keys holds views: the bytes they point to must live until the last launch that reads the
//! table.

use std::sync::OnceLock;

use millpond_ptx::ast::{Module, Type};
use millpond_ptx::build::{Callee, Compare, FunctionBuilder, ModuleBuilder, Reg, fingerprint};

use super::ir::Lane;
use super::value::{CodegenError, Emit, Value};
use crate::image::IMAGES;

/// Words of a text key in a hash table: its hash, then the two words of its view.
pub(crate) const KEY_WORDS: u32 = 3;

/// Words of a text in the key of an order: its first sixteen bytes as two numbers, its length, its address.
pub(crate) const ORDER_WORDS: u32 = 4;
/// Bytes in the first two of these words.
const WORD_BYTES: u64 = 16;

/// The image of text functions, and its fingerprint.
fn image() -> Result<&'static (Module, u64), CodegenError> {
    static IMAGE: OnceLock<Result<(Module, u64), CodegenError>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| {
        let image = IMAGES.iter().find(|image| image.name == "text");
        let image = image.ok_or_else(|| CodegenError::Ptx("there is no image of text functions".into()))?;
        let whole = millpond_ptx::parse(image.text).map_err(|error| CodegenError::Ptx(error.to_string()))?;
        let fingerprint = fingerprint(&whole);
        Ok((whole, fingerprint))
    });
    image.as_ref().map_err(Clone::clone)
}

/// Pastes helper `name` and its dependencies into `module`, unless they are there already.
pub(crate) fn paste(module: &mut ModuleBuilder, name: &str) -> Result<Callee, CodegenError> {
    let (image, fingerprint) = image()?;
    module.paste_known(image, *fingerprint, name).map_err(|error| CodegenError::Ptx(error.to_string()))
}

/// Address (U64) and length in bytes (U64) of a text in registers.
pub(crate) fn words(value: Value) -> Result<(Reg, Reg), CodegenError> {
    match (value.lane, value.high) {
        (Lane::Text, Some(bytes)) => Ok((value.low.view(Type::U64), bytes.view(Type::U64))),
        (lane, _) => Err(CodegenError::Malformed { what: "a text".into(), why: format!("it comes as {lane:?}") }),
    }
}

/// Words of a text as a key: its hash, and its view (U64 each), which the caller may already have. Arbitrary for NULL.
pub(crate) fn key_words(emit: &mut Emit<'_>, value: Value, view: Option<Value>) -> Result<Vec<Reg>, CodegenError> {
    let (at, bytes) = words(value)?;
    let mut call = |name: &str| -> Result<Vec<Reg>, CodegenError> {
        let callee = paste(emit.module, name)?;
        let words = emit.f.call(&callee, &[at.into(), bytes.into()]);
        Ok(words.into_iter().map(|word| word.view(Type::U64)).collect())
    };
    let mut own = call("text_hash")?;
    match view.map(words).transpose()? {
        Some((first, second)) => own.extend([first, second]),
        None => own.extend(call("text_view")?),
    }
    Ok(own)
}

/// Helper that compares texts among keys of these lanes; `None` if no key is a text.
pub(crate) fn comparison(
    module: &mut ModuleBuilder,
    lanes: impl IntoIterator<Item = Lane>,
) -> Result<Option<Callee>, CodegenError> {
    let texts = lanes.into_iter().any(|lane| lane == Lane::Text);
    texts.then(|| paste(module, "text_same")).transpose()
}

/// Compares two texts whose views have an equal first word `first`, and these second words.
pub(crate) fn same_views(f: &mut FunctionBuilder, comparison: &Callee, first: Reg, a: Reg, b: Reg) -> Reg {
    let same = f.call(comparison, &[first.into(), a.into(), b.into()]);
    f.setp(Compare::Ne, same[0].view(Type::U32), 0u32)
}

/// Words of a text as the key of an order (U64 each). The first two are greater for the text that comes first: the
/// greater text if `descending`, else the smaller.
pub(crate) fn order_words(emit: &mut Emit<'_>, value: Value, descending: bool) -> Result<Vec<Reg>, CodegenError> {
    let (at, bytes) = words(value)?;
    let callee = paste(emit.module, "text_word")?;
    let mut own = Vec::with_capacity(ORDER_WORDS as usize);
    for index in 0..2u64 {
        let word = emit.f.call(&callee, &[at.into(), bytes.into(), index.into()])[0].view(Type::U64);
        own.push(if descending { word } else { emit.f.not(word).view(Type::U64) });
    }
    own.extend([bytes, at]);
    Ok(own)
}

/// The words of a text's view (U64 each).
pub(crate) fn view_words(emit: &mut Emit<'_>, value: Value) -> Result<Vec<Reg>, CodegenError> {
    let (at, bytes) = words(value)?;
    let callee = paste(emit.module, "text_view")?;
    Ok(emit.f.call(&callee, &[at.into(), bytes.into()]).into_iter().map(|word| word.view(Type::U64)).collect())
}

/// Helper that compares texts beyond their first bytes.
pub(crate) fn order(module: &mut ModuleBuilder) -> Result<Callee, CodegenError> {
    paste(module, "text_compare")
}

/// Compares texts `a` and `b` with equal first sixteen bytes (S32: below 0, 0, above 0). Each is a length in bytes and
/// an address.
pub(crate) fn compare_rest(f: &mut FunctionBuilder, compare: &Callee, a: [Reg; 2], b: [Reg; 2]) -> Reg {
    // A text of at most sixteen bytes is a prefix of the other; the shorter comes first.
    let rest = |f: &mut FunctionBuilder, [bytes, at]: [Reg; 2]| {
        let long = f.setp(Compare::Gt, bytes, WORD_BYTES);
        let left = f.sub(bytes, WORD_BYTES);
        let left = f.select(long, left, 0u64).view(Type::U64);
        (f.add(at, WORD_BYTES), left)
    };
    let ((at_a, left_a), (at_b, left_b)) = (rest(f, a), rest(f, b));
    let order = f.call(compare, &[at_a.into(), left_a.into(), at_b.into(), left_b.into()]);
    let order = f.copy(Type::S32, order[0].view(Type::S32));
    let same = f.setp(Compare::Eq, order, 0);
    f.if_(same, |f| {
        let (less, more) = (f.setp(Compare::Lt, a[0], b[0]), f.setp(Compare::Gt, a[0], b[0]));
        f.guarded(less, true, |f| f.assign(order, -1));
        f.guarded(more, true, |f| f.assign(order, 1));
    });
    order
}
