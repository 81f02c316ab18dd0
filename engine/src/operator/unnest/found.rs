//! What another crate tells of its functions from a text to a list: what the device is to look for.
//!
//!   words_of_praise(text) ── ListFunction::found ──► in lower case, sentences end at . ? !, words of a lexicon, fields

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::physical_expr::ScalarFunctionExpr;
use millpond_kernels::sentences::{Ends, Lexicon};

/// Knows functions from a text to a list: of its sentences, of its words, or of a structure for each word of a lexicon.
pub trait ListFunction: Debug + Send + Sync {
    /// What `call` finds in its first argument; `None` if the function is another's. Of a NULL it gives NULL or an empty list.
    fn found(&self, call: &ScalarFunctionExpr) -> Option<Found>;
}

/// What a function finds in a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The text is made lower case before.
    pub lower: bool,
    /// Where sentences end.
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

/// Words of a lexicon, and a structure of texts for each that is found.
#[derive(Debug, Clone, PartialEq)]
pub struct WordHits {
    /// The words of the lexicon, in its order.
    pub words: Arc<[String]>,
    /// What a word may say: what its bits stand for.
    pub says: Arc<[String]>,
    pub lexicon: Arc<Lexicon>,
    /// The fields of the structure, in its order, with their names.
    pub fields: Vec<(String, HitField)>,
}

/// A field of the structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitField {
    /// The sentence that the word is in; or the item itself, where it is no structure.
    Sentence,
    /// The word, as the lexicon has it.
    Word,
    /// What it says.
    Says,
}

impl HitField {
    /// Its place among the columns of hits; column 0 is the number of the row.
    pub(crate) fn column(self) -> u32 {
        match self {
            Self::Sentence => 1,
            Self::Word => 2,
            Self::Says => 3,
        }
    }
}
