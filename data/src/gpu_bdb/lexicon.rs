//! Word lists of gpu-bdb: sentiment words, companies, store names, and vocabulary of reviews.
//!
//! ```text
//!   reviews (text model)  ──use──►  POSITIVE[..20]  NEGATIVE[..20]  COMPANIES  store_name(k)
//!   queries 10 18 19 27   ──look up──►  sentiment_words()  COMPANIES  COMPANY_SUFFIXES
//! ```
//!
//! Own     every list was written for this crate; none is from a benchmark kit. The companies do not exist.
//! Stable  the order is part of the generated data: append only, and only with a new generator version.

/// Sentiment words with a positive meaning. Reviews use the first [`USED_SENTIMENT_WORDS`]; lookups of the others find
/// nothing.
#[rustfmt::skip]
pub const POSITIVE: [&str; 200] = [
    "good", "great", "excellent", "love", "nice", "perfect", "amazing", "wonderful", "happy", "easy",
    "best", "beautiful", "fun", "enjoy", "recommend", "solid", "awesome", "pleased", "comfortable", "fantastic",
    "superb", "delightful", "pleasant", "charming", "brilliant", "lovely", "terrific", "splendid", "marvelous", "outstanding",
    "remarkable", "impressive", "stunning", "gorgeous", "elegant", "stylish", "graceful", "radiant", "vibrant", "lively",
    "cheerful", "joyful", "joyous", "merry", "glad", "grateful", "thankful", "thrilled", "delighted", "satisfied",
    "satisfying", "rewarding", "refreshing", "relaxing", "soothing", "cozy", "warm", "welcoming", "friendly", "kind",
    "generous", "helpful", "supportive", "caring", "thoughtful", "considerate", "polite", "courteous", "respectful", "loyal",
    "faithful", "honest", "sincere", "trustworthy", "reliable", "dependable", "durable", "sturdy", "robust", "strong",
    "resilient", "efficient", "effective", "productive", "practical", "handy", "useful", "valuable", "worthwhile", "affordable",
    "fair", "reasonable", "economical", "flexible", "versatile", "intuitive", "convenient", "smooth", "seamless", "effortless",
    "quick", "fast", "swift", "speedy", "prompt", "responsive", "accurate", "precise", "crisp", "clear",
    "clean", "tidy", "neat", "fresh", "pure", "healthy", "nutritious", "delicious", "tasty", "yummy",
    "flavorful", "juicy", "savory", "sweet", "scrumptious", "appetizing", "superior", "premium", "exquisite", "luxurious",
    "lavish", "classy", "sophisticated", "polished", "refined", "flawless", "faultless", "spotless", "immaculate", "pristine",
    "ideal", "fabulous", "phenomenal", "magnificent", "majestic", "glorious", "spectacular", "sensational", "incredible", "extraordinary",
    "exceptional", "admirable", "commendable", "praiseworthy", "laudable", "noble", "heroic", "brave", "courageous", "bold",
    "confident", "optimistic", "hopeful", "inspiring", "inspired", "motivating", "uplifting", "exciting", "excited", "enthusiastic",
    "energetic", "playful", "witty", "humorous", "hilarious", "amusing", "entertaining", "captivating", "engaging", "fascinating",
    "creative", "inventive", "innovative", "ingenious", "clever", "smart", "wise", "talented", "gifted", "skillful",
    "blissful", "adore", "treasure", "cherish", "praise", "applaud", "triumph", "success", "sick", "crazy",
];

/// Sentiment words with a negative meaning; `sick` and `crazy` are deliberately in both lists. Reviews use the first
/// [`USED_SENTIMENT_WORDS`].
#[rustfmt::skip]
pub const NEGATIVE: [&str; 200] = [
    "bad", "poor", "terrible", "hate", "awful", "broken", "worst", "disappointing", "slow", "cheap",
    "useless", "annoying", "boring", "hard", "never", "old", "sad", "weak", "wrong", "defective",
    "horrible", "dreadful", "horrid", "atrocious", "abysmal", "appalling", "ghastly", "hideous", "ugly", "nasty",
    "gross", "disgusting", "revolting", "repulsive", "vile", "foul", "rotten", "stinky", "smelly", "moldy",
    "filthy", "dirty", "grimy", "greasy", "sticky", "rusty", "worn", "shabby", "ragged", "torn",
    "cracked", "shattered", "smashed", "damaged", "faulty", "flawed", "buggy", "glitchy", "unstable", "unreliable",
    "flimsy", "fragile", "brittle", "wobbly", "shaky", "loose", "crooked", "uneven", "warped", "bent",
    "noisy", "loud", "harsh", "rough", "coarse", "itchy", "scratchy", "painful", "sore", "uncomfortable",
    "awkward", "clumsy", "bulky", "cumbersome", "tedious", "dull", "bland", "stale", "tasteless", "flavorless",
    "bitter", "sour", "soggy", "burnt", "undercooked", "overpriced", "expensive", "pricey", "costly", "wasteful",
    "worthless", "pointless", "meaningless", "senseless", "hopeless", "helpless", "joyless", "lifeless", "careless", "thoughtless",
    "rude", "impolite", "hostile", "hateful", "spiteful", "cruel", "mean", "harmful", "hurtful", "dangerous",
    "hazardous", "toxic", "poisonous", "perilous", "risky", "deceptive", "misleading", "dishonest", "fraudulent", "fake",
    "bogus", "phony", "shady", "greedy", "selfish", "arrogant", "stubborn", "lazy", "sloppy", "messy",
    "chaotic", "confusing", "confused", "complicated", "frustrating", "frustrated", "irritating", "irritated", "infuriating", "angry",
    "furious", "upset", "unhappy", "miserable", "gloomy", "depressing", "depressed", "dismal", "bleak", "grim",
    "tragic", "grievous", "unfortunate", "regret", "regrettable", "disappointed", "dissatisfied", "unsatisfied", "displeased", "ashamed",
    "embarrassing", "shameful", "pathetic", "pitiful", "laughable", "ridiculous", "absurd", "stupid", "foolish", "silly",
    "inferior", "inadequate", "insufficient", "incomplete", "inaccurate", "incorrect", "ineffective", "inefficient", "incompetent", "failing",
    "failure", "flop", "disaster", "nightmare", "trash", "garbage", "complain", "despise", "sick", "crazy",
];

/// Number of words from the front of either list that occur in generated reviews.
pub const USED_SENTIMENT_WORDS: usize = 20;

/// Companies that reviews mention.
#[rustfmt::skip]
pub const COMPANIES: [&str; 40] = [
    "Acme Corp", "Globex Inc", "Initech", "Umbra Media", "Vandelay Industries",
    "Hooli Systems", "Stark Audio", "Wayne Electronics", "Quorvex Corp", "Zelumbra Inc",
    "Brantoval Ltd", "Mirkwold LLC", "Tressenborg GmbH", "Oldrefinch Co", "Varnellico Group",
    "Plindora Systems", "Kestrovan Industries", "Ombreluxa Electronics", "Sundravel Media", "Echovanta Audio",
    "Dravimonte Corp", "Fennimarc Inc", "Grelvotech", "Holtzamere GmbH", "Jaspellon Ltd",
    "Lorvantis Group", "Nubrixo", "Peltronava Electronics", "Rastovane Industries", "Skelvory Systems",
    "Tamberlusk Media", "Ulvastone Co", "Wexmorrow LLC", "Yondrelle Audio", "Zarquillon",
    "Brimmelock Corp", "Cindrevane", "Dromalithic Industries", "Evershanko Ltd", "Flaxonbury Group",
];

/// Last words of company names: a run of capitalised words that ends with one is a company.
pub const COMPANY_SUFFIXES: [&str; 12] =
    ["Corp", "Inc", "Ltd", "LLC", "GmbH", "Co", "Group", "Systems", "Industries", "Electronics", "Media", "Audio"];

/// The most frequent words of reviews, most frequent first.
pub const FUNCTION_WORDS: [&str; 60] = [
    "the", "a", "and", "of", "to", "it", "is", "was", "i", "this", "for", "in", "with", "that", "on", "as", "but",
    "my", "you", "have", "not", "are", "so", "at", "they", "very", "its", "be", "one", "from", "all", "when", "just",
    "or", "had", "if", "can", "will", "has", "an", "out", "more", "up", "about", "would", "like", "get", "use", "only",
    "time", "there", "than", "we", "no", "what", "by", "been", "after", "do", "also",
];

/// Number of store names, from the front, that are also dictionary words: reviews use them without meaning a store.
pub const DICTIONARY_STORE_NAMES: usize = 3;

const STORE_NAMES: [&str; 20] = [
    "Forest",
    "Union",
    "Liberty",
    "Avalon",
    "Elmwood",
    "Hillside",
    "Bloomfield",
    "Lakewood",
    "Kingston",
    "Georgetown",
    "Bethel",
    "Salem",
    "Clinton",
    "Marion",
    "Dayton",
    "Ashland",
    "Milford",
    "Newport",
    "Oxford",
    "Burlington",
];
const STORE_PREFIXES: [&str; 20] = [
    "Oak", "Pine", "Maple", "River", "Spring", "Stone", "Fair", "Green", "White", "Red", "Clear", "North", "South",
    "East", "West", "High", "Deep", "Long", "Silver", "Golden",
];
const STORE_SUFFIXES: [&str; 16] = [
    "wood", "field", "ville", "ton", "burg", "ford", "dale", "brook", "haven", "port", "ridge", "view", "side", "land",
    "crest", "mont",
];
/// Number of distinct store names: 20 fixed names and 320 combinations of a prefix and a suffix.
pub const NUM_STORE_NAMES: usize = STORE_NAMES.len() + STORE_PREFIXES.len() * STORE_SUFFIXES.len();

/// Store name `index`, from 0; the list repeats after [`NUM_STORE_NAMES`].
pub fn store_name(index: usize) -> String {
    let index = index % NUM_STORE_NAMES;
    match index.checked_sub(STORE_NAMES.len()) {
        None => STORE_NAMES[index].to_string(),
        Some(pair) => {
            // Prefix and suffix both change with each name, so that neighbours share neither.
            let prefix = pair % STORE_PREFIXES.len();
            let suffix = (prefix + pair / STORE_PREFIXES.len()) % STORE_SUFFIXES.len();
            format!("{}{}", STORE_PREFIXES[prefix], STORE_SUFFIXES[suffix])
        }
    }
}

/// Polarity of a sentiment word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sentiment {
    Positive,
    Negative,
}

impl Sentiment {
    /// `POS` or `NEG`, as in the queries' output.
    pub fn code(self) -> &'static str {
        match self {
            Sentiment::Positive => "POS",
            Sentiment::Negative => "NEG",
        }
    }
}

/// Rows of the table `sentiment_words(word, sentiment)`: positive words first, each list in its order.
///
/// ```
/// use millpond_data::gpu_bdb::lexicon;
/// let (word, sentiment) = lexicon::sentiment_words().nth(202).expect("400 rows");
/// assert_eq!((word, sentiment.code()), ("terrible", "NEG"));
/// ```
pub fn sentiment_words() -> impl ExactSizeIterator<Item = (&'static str, Sentiment)> + Clone {
    (0..POSITIVE.len() + NEGATIVE.len()).map(|row| match row.checked_sub(POSITIVE.len()) {
        None => (POSITIVE[row], Sentiment::Positive),
        Some(row) => (NEGATIVE[row], Sentiment::Negative),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn sentiment_lists_are_lower_case_words_and_share_two() {
        let positive: HashSet<_> = POSITIVE.into_iter().collect();
        let negative: HashSet<_> = NEGATIVE.into_iter().collect();
        assert_eq!((positive.len(), negative.len()), (200, 200));
        let mut both: Vec<_> = positive.intersection(&negative).copied().collect();
        both.sort_unstable();
        assert_eq!(both, ["crazy", "sick"]);
        for (word, _) in sentiment_words() {
            assert!(word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_lowercase()), "{word}");
            assert!(!FUNCTION_WORDS.contains(&word), "{word} is a function word");
        }
        assert_eq!(sentiment_words().len(), 400);
    }

    #[test]
    fn companies_are_distinct_runs_of_capitalised_words() {
        assert_eq!(COMPANIES.into_iter().collect::<HashSet<_>>().len(), 40);
        for name in COMPANIES {
            for word in name.split(' ') {
                assert!(word.starts_with(|first: char| first.is_ascii_uppercase()), "{name}");
                let lower = word.to_lowercase();
                assert!(sentiment_words().all(|(sentiment, _)| sentiment != lower), "{name} holds a sentiment word");
            }
        }
    }

    #[test]
    fn store_names_are_distinct_and_long_enough() {
        let names: HashSet<_> = (0..NUM_STORE_NAMES).map(store_name).collect();
        assert_eq!((NUM_STORE_NAMES, names.len()), (340, 340));
        assert!(names.iter().all(|name| name.len() >= 5 && !name.contains(' ')));
        assert_eq!(store_name(0), "Forest");
        assert_eq!(store_name(NUM_STORE_NAMES), "Forest");
        assert!(sentiment_words().all(|(word, _)| !names.iter().any(|name| name.to_lowercase() == word)));
    }

    #[test]
    fn function_words_are_distinct() {
        assert_eq!(FUNCTION_WORDS.into_iter().collect::<HashSet<_>>().len(), 60);
    }
}
