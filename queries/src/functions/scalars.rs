//! Scalar functions in SQL: from text to lists, and hashes.
//!
//! ```text
//!   sentiment_hits('Good. Bad', 'any_lower')
//!     ─►  [{sentence: 'good', sentiment: 'POS', word: 'good'}, {sentence: ' bad', sentiment: 'NEG', word: 'bad'}]
//!   SELECT hit['word'] FROM (SELECT UNNEST(sentiment_hits(text)) AS hit FROM reviews)            one row per hit
//! ```
//!
//! NULL    input gives NULL.   Rules and numbers   must be constants, and are checked during planning.
//! Types   any layout of text, including dictionaries. Lists contain `Utf8View`.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use millpond::datafusion::arrow::array::{
    Array, ArrayRef, AsArray, ListArray, StringViewBuilder, StructArray, UInt32Array,
};
use millpond::datafusion::arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use millpond::datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields};
use millpond::datafusion::common::{DataFusionError, ScalarValue};
use millpond::datafusion::error::Result;
use millpond::datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use millpond::datafusion::physical_expr::expressions::Literal;
use millpond::datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::error::shown;
use super::ml::{NaiveBayesOptions, NgramHasher, murmur3_32};
use super::text::views;
use super::{Companies, FunctionError, Lexicon, SentenceRule, Sentiment, words};

/// A scalar function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Sentences,
    Words,
    Sentiments,
    SentimentHits,
    CompaniesIn,
    CompanyMentions,
    Murmur3,
    HashedNgrams,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Self::Sentences,
        Self::Words,
        Self::Sentiments,
        Self::SentimentHits,
        Self::CompaniesIn,
        Self::CompanyMentions,
        Self::Murmur3,
        Self::HashedNgrams,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Sentences => "sentences",
            Self::Words => "words",
            Self::Sentiments => "sentiments",
            Self::SentimentHits => "sentiment_hits",
            Self::CompaniesIn => "companies_in",
            Self::CompanyMentions => "company_mentions",
            Self::Murmur3 => "murmur3_32",
            Self::HashedNgrams => "hashed_ngrams",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::Sentences => "sentences(text [, rule])",
            Self::Words => "words(text)",
            Self::Sentiments => "sentiments(word)",
            Self::SentimentHits => "sentiment_hits(text [, rule [, sentiment]])",
            Self::CompaniesIn => "companies_in(sentence)",
            Self::CompanyMentions => "company_mentions(text)",
            Self::Murmur3 => "murmur3_32(text [, seed])",
            Self::HashedNgrams => "hashed_ngrams(text [, buckets])",
        }
    }

    /// Names of the arguments after the text, and whether they are numbers.
    fn options(self) -> &'static [(&'static str, bool)] {
        match self {
            Self::Sentences => &[("rule", false)],
            Self::SentimentHits => &[("rule", false), ("sentiment", false)],
            Self::Murmur3 => &[("seed", true)],
            Self::HashedNgrams => &[("buckets", true)],
            Self::Words | Self::Sentiments | Self::CompaniesIn | Self::CompanyMentions => &[],
        }
    }

    fn fields(self) -> Fields {
        let names: &[&str] = match self {
            Self::SentimentHits => &["sentence", "sentiment", "word"],
            _ => &["company", "sentence"],
        };
        names.iter().map(|name| Field::new(*name, DataType::Utf8View, false)).collect()
    }

    fn item(self) -> FieldRef {
        let data_type = match self {
            Self::SentimentHits | Self::CompanyMentions => DataType::Struct(self.fields()),
            Self::HashedNgrams => DataType::UInt32,
            _ => DataType::Utf8View,
        };
        Arc::new(Field::new_list_field(data_type, true))
    }

    fn result(self) -> DataType {
        match self {
            Self::Murmur3 => DataType::UInt32,
            _ => DataType::List(self.item()),
        }
    }
}

/// All scalar functions, over one lexicon and one recognizer.
pub(crate) fn all(lexicon: &Arc<Lexicon>, companies: &Arc<Companies>) -> impl Iterator<Item = ScalarUDF> {
    let (lexicon, companies) = (Arc::clone(lexicon), Arc::clone(companies));
    Kind::ALL.into_iter().map(move |kind| {
        ScalarUDF::new_from_impl(TextFunction {
            kind,
            lexicon: Arc::clone(&lexicon),
            companies: Arc::clone(&companies),
            signature: Signature::user_defined(Volatility::Immutable),
        })
    })
}

/// Parts into which a call splits its text.
pub(crate) enum Parts {
    Sentences(SentenceRule),
    Words,
    SentimentHits(Arc<Lexicon>, SentenceRule, Option<Sentiment>),
}

/// Parts into which a call of one of these functions splits its text; `None` for other functions.
pub(crate) fn parts_of(call: &ScalarFunctionExpr) -> Option<Parts> {
    let function = call.fun().inner().downcast_ref::<TextFunction>()?;
    let constant = |argument: &Arc<dyn PhysicalExpr>| argument.downcast_ref::<Literal>().map(|one| one.value().clone());
    let constants = call.args().get(1..)?.iter().map(constant).collect::<Option<Vec<_>>>()?;
    let options = function.options(&constants.iter().map(Some).collect::<Vec<_>>()).ok()?;
    match function.kind {
        Kind::Sentences => Some(Parts::Sentences(options.rule)),
        Kind::Words => Some(Parts::Words),
        Kind::SentimentHits => {
            Some(Parts::SentimentHits(Arc::clone(&function.lexicon), options.rule, options.sentiment))
        }
        _ => None,
    }
}

#[derive(Debug)]
struct TextFunction {
    kind: Kind,
    lexicon: Arc<Lexicon>,
    companies: Arc<Companies>,
    signature: Signature,
}

impl PartialEq for TextFunction {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.lexicon == other.lexicon && self.companies == other.companies
    }
}

impl Eq for TextFunction {}

impl Hash for TextFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
    }
}

/// Constant arguments after the text, with their defaults.
#[derive(Default)]
struct Options {
    rule: SentenceRule,
    sentiment: Option<Sentiment>,
    seed: u32,
    buckets: Option<u32>,
}

impl TextFunction {
    fn options(&self, constants: &[Option<&ScalarValue>]) -> Result<Options> {
        let function = self.kind.name();
        let mut options = Options::default();
        for (constant, (argument, _)) in constants.iter().zip(self.kind.options()) {
            let refused =
                |given: String, wanted: &'static str| FunctionError::Argument { function, argument, given, wanted };
            let Some(constant) = constant else {
                return Err(refused("a column or an expression".to_string(), "a constant").into());
            };
            let text = constant.try_as_str().flatten();
            let number = constant.cast_to(&DataType::Int64).ok().and_then(|number| match number {
                ScalarValue::Int64(number) => number.and_then(|number| u32::try_from(number).ok()),
                _ => None,
            });
            let given = || shown(constant);
            match *argument {
                "rule" => {
                    let rule = text.and_then(SentenceRule::named);
                    options.rule = rule.ok_or_else(|| refused(given(), "'any_lower', 'any', 'spaced' or 'stop'"))?;
                }
                "sentiment" => {
                    let sentiment = text.and_then(Sentiment::coded);
                    options.sentiment = Some(sentiment.ok_or_else(|| refused(given(), "'POS' or 'NEG'"))?);
                }
                "seed" => options.seed = number.ok_or_else(|| refused(given(), "an integer from 0 to 4294967295"))?,
                _ => {
                    let buckets = number.filter(|buckets| NgramHasher::try_new(*buckets).is_ok());
                    options.buckets = Some(buckets.ok_or_else(|| refused(given(), "an integer from 1 to 1073741824"))?);
                }
            }
        }
        Ok(options)
    }

    fn evaluate(&self, text: &ArrayRef, options: &Options) -> Result<ArrayRef> {
        let hash = |bytes: Option<&[u8]>| bytes.map(|bytes| murmur3_32(bytes, options.seed));
        if self.kind == Kind::Murmur3 {
            return Ok(match text.data_type() {
                DataType::BinaryView => Arc::new(text.as_binary_view().iter().map(hash).collect::<UInt32Array>()),
                _ => Arc::new(views(text)?.iter().map(|text| hash(text.map(str::as_bytes))).collect::<UInt32Array>()),
            });
        }
        let texts = views(text)?;
        let mut lists = Lists::new(texts.len());
        let mut strings = [StringViewBuilder::new(), StringViewBuilder::new(), StringViewBuilder::new()];
        let mut numbers: Vec<u32> = vec![];
        let hasher = NgramHasher::try_new(options.buckets.unwrap_or(NaiveBayesOptions::default().buckets))?;
        for text in texts.iter() {
            let [first, second, third] = &mut strings;
            let mut items = 0;
            if let Some(text) = text {
                let mut one = |item: &str| {
                    first.append_value(item);
                    items += 1;
                };
                match self.kind {
                    Kind::Sentences => options.rule.sentences(text, one),
                    Kind::Words => words(text, one),
                    Kind::Sentiments => self.lexicon.sentiments(text).for_each(|sentiment| one(sentiment.code())),
                    Kind::CompaniesIn => self.companies.find(text, one),
                    Kind::SentimentHits => {
                        self.lexicon.hits(text, options.rule, options.sentiment, |sentence, sentiment, word| {
                            one(sentence);
                            second.append_value(sentiment.code());
                            third.append_value(word);
                        });
                    }
                    Kind::CompanyMentions => self.companies.mentions(text, |name, sentence| {
                        one(name);
                        second.append_value(sentence);
                    }),
                    Kind::HashedNgrams => {
                        let before = numbers.len();
                        hasher.buckets(text, &mut numbers);
                        items = numbers.len() - before;
                    }
                    Kind::Murmur3 => {}
                }
            }
            lists.push(items)?;
        }
        let [mut first, mut second, mut third] = strings;
        let finish = |builder: &mut StringViewBuilder| -> ArrayRef { Arc::new(builder.finish()) };
        let items: ArrayRef = match self.kind {
            Kind::HashedNgrams => Arc::new(UInt32Array::from(numbers)),
            Kind::SentimentHits => {
                let columns = vec![finish(&mut first), finish(&mut second), finish(&mut third)];
                Arc::new(StructArray::try_new(self.kind.fields(), columns, None)?)
            }
            Kind::CompanyMentions => {
                let columns = vec![finish(&mut first), finish(&mut second)];
                Arc::new(StructArray::try_new(self.kind.fields(), columns, None)?)
            }
            _ => finish(&mut first),
        };
        lists.finish(self.kind, items, texts.nulls().cloned())
    }
}

/// End offset of each row's list.
struct Lists(Vec<i32>);

impl Lists {
    fn new(rows: usize) -> Self {
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        Self(ends)
    }

    fn push(&mut self, items: usize) -> Result<()> {
        let last = self.0.last().copied().unwrap_or(0);
        let end = i32::try_from(items).ok().and_then(|items| last.checked_add(items));
        let end = end.ok_or_else(|| {
            DataFusionError::Execution(
                "a batch of texts has more than 2^31 parts; lower datafusion.execution.batch_size".to_string(),
            )
        })?;
        self.0.push(end);
        Ok(())
    }

    fn finish(self, kind: Kind, items: ArrayRef, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.0));
        Ok(Arc::new(ListArray::try_new(kind.item(), offsets, items, nulls)?))
    }
}

impl ScalarUDFImpl for TextFunction {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(self.kind.result())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        // Constant expressions are checked later, when they have been evaluated.
        let constants = args.scalar_arguments.get(1..).unwrap_or_default();
        if constants.iter().all(Option::is_some) {
            self.options(constants)?;
        }
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.kind.result(), nullable)))
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        let (function, options) = (self.kind.name(), self.kind.options());
        let Some((text, rest)) = arg_types.split_first().filter(|(_, rest)| rest.len() <= options.len()) else {
            let (given, usage) = (arg_types.len(), self.kind.usage());
            let wanted = match options.len() {
                0 => "one argument".to_string(),
                more => format!("1 to {} arguments", more + 1),
            };
            return Err(FunctionError::Count { function, wanted, given, usage }.into());
        };
        let refused = |argument: &'static str, given: &DataType, wanted: &'static str| {
            DataFusionError::from(FunctionError::Argument { function, argument, given: given.to_string(), wanted })
        };
        let coerced = |data_type: &DataType| match data_type {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => Some(DataType::Utf8View),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)
                if self.kind == Kind::Murmur3 =>
            {
                Some(DataType::BinaryView)
            }
            _ => None,
        };
        let plain = match text {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        let wanted = if self.kind == Kind::Murmur3 { "TEXT or BYTEA" } else { "TEXT; CAST it to VARCHAR" };
        let mut types = vec![coerced(plain).ok_or_else(|| refused("its first argument", text, wanted))?];
        for (given, (argument, number)) in rest.iter().zip(options) {
            // A constant is not cast, because a cast would hide that it is constant.
            types.push(match (number, given) {
                (true, given) if given.is_integer() => given.clone(),
                (true, _) => return Err(refused(argument, given, "an integer")),
                (false, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) => given.clone(),
                (false, _) => return Err(refused(argument, given, "a string")),
            });
        }
        Ok(types)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = |value: &ColumnarValue| match value {
            ColumnarValue::Scalar(scalar) => Some(scalar.clone()),
            ColumnarValue::Array(_) => None,
        };
        let constants: Vec<Option<ScalarValue>> = args.args.iter().skip(1).map(constant).collect();
        let options = self.options(&constants.iter().map(Option::as_ref).collect::<Vec<_>>())?;
        match args.args.first() {
            Some(ColumnarValue::Array(texts)) => Ok(ColumnarValue::Array(self.evaluate(texts, &options)?)),
            Some(ColumnarValue::Scalar(text)) => {
                let list = self.evaluate(&text.to_array()?, &options)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&list, 0)?))
            }
            None => Err(DataFusionError::Internal(format!("{} got no argument", self.name()))),
        }
    }
}
