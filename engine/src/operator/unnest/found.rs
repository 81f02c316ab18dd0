//! Functions of other crates from a text to a list, described as searches for the device.
//!
//!   words_of_praise(text) ── ListFunction::found ──► in lower case, sentences end at . ? !, words of a lexicon, fields

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::physical_expr::ScalarFunctionExpr;
use millpond_kernels::sentences::{Ends, Lexicon};

/// Describes functions from a text to a list: of its sentences, of its words, or of a structure for each word of a
/// lexicon.
pub trait ListFunction: Debug + Send + Sync {
    /// The search of `call` in its first argument; `None` for other functions. For NULL the function returns NULL or an
    /// empty list.
    fn found(&self, call: &ScalarFunctionExpr) -> Option<Found>;
}

/// Search of a function in a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The text is converted to lower case first.
    pub lower: bool,
    /// Rule for the ends of sentences.
    pub ends: Ends,
    pub items: Items,
}

/// The items of the list.
#[derive(Debug, Clone, PartialEq)]
pub enum Items {
    /// A structure for each word of a lexicon.
    Hits(WordHits),
    /// Every sentence that is not empty.
    Sentences,
    /// Every word of the text: cut at blanks, without `.` `,` `;` `-` and `"`, and not empty.
    Words,
}

/// Words of a lexicon, and the structure of texts for each hit.
#[derive(Debug, Clone, PartialEq)]
pub struct WordHits {
    /// The words of the lexicon, in its order.
    pub words: Arc<[String]>,
    /// Values of the `Says` field, which a word's bits select.
    pub says: Arc<[String]>,
    pub lexicon: Arc<Lexicon>,
    /// The fields of the structure, in its order, with their names.
    pub fields: Vec<(String, HitField)>,
}

/// A field of the structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitField {
    /// The sentence that contains the word; or the item itself, if it is no structure.
    Sentence,
    /// The word, as in the lexicon.
    Word,
    /// The value of `says` for the word.
    Says,
}

impl HitField {
    /// Index among the columns of hits; column 0 is the number of the row.
    pub(crate) fn column(self) -> u32 {
        match self {
            Self::Sentence => 1,
            Self::Word => 2,
            Self::Says => 3,
        }
    }
}
