//! Identifiers, and the words of dimension tables: states, streets, people, categories.
//!
//! ```text
//!   id16(1) = AAAAAAAAAAAAAAAB      constant length, sorts like the number
//! ```
//!
//! Own    the lists were written for this crate; state codes, numbers of counties and time zones are facts.

use super::random::Draws;

/// Sixteen letters that sort like the number: base 26, A for zero.
pub(crate) fn id16(mut number: u64) -> String {
    let mut letters = [b'A'; 16];
    for letter in letters.iter_mut().rev() {
        *letter = b'A' + (number % 26) as u8;
        number /= 26;
    }
    letters.iter().map(|&letter| char::from(letter)).collect()
}

/// State, number of counties, and UTC offset in hours; a state with two offsets has two entries.
#[rustfmt::skip]
const STATES: [(&str, i64, i64); 55] = [
    ("TX", 254, -6), ("GA", 159, -5), ("VA", 135, -5), ("MO", 109, -6), ("KS", 105, -6), ("IL", 101, -6), ("NC", 100, -5),
    ("IA", 99, -6), ("IN", 91, -5), ("OH", 88, -5), ("MN", 86, -6), ("MS", 82, -6), ("MI", 81, -5), ("OK", 77, -6),
    ("AR", 74, -6), ("WI", 71, -6), ("PA", 67, -5), ("AL", 66, -6), ("FL", 64, -5), ("CO", 63, -7), ("NY", 61, -5),
    ("CA", 58, -8), ("MT", 56, -7), ("LA", 55, -6), ("WV", 55, -5), ("ND", 53, -6), ("SC", 46, -5), ("ID", 44, -7),
    ("WA", 39, -8), ("OR", 36, -8), ("NM", 33, -7), ("UT", 29, -7), ("MD", 23, -5), ("AK", 23, -9), ("WY", 23, -7),
    ("NJ", 21, -5), ("NV", 17, -8), ("ME", 16, -5), ("AZ", 15, -7), ("VT", 14, -5), ("MA", 14, -5), ("NH", 10, -5),
    ("CT", 8, -5), ("RI", 5, -5), ("HI", 4, -10), ("DE", 3, -5), ("DC", 1, -5), ("KY", 61, -5), ("KY", 59, -6),
    ("TN", 46, -5), ("TN", 49, -6), ("NE", 45, -6), ("NE", 48, -7), ("SD", 28, -6), ("SD", 38, -7),
];
const NUM_COUNTIES: i64 = 3_108;

/// A place: its county determines state and offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) street_number: String,
    pub(crate) street_name: &'static str,
    pub(crate) street_type: &'static str,
    pub(crate) suite: String,
    pub(crate) city: &'static str,
    pub(crate) county: String,
    pub(crate) state: &'static str,
    pub(crate) zip: String,
    /// UTC offset in hours.
    pub(crate) offset: i64,
}

/// State and offset of county `county`, from 0.
fn state_of(mut county: i64) -> (&'static str, i64) {
    for (state, counties, offset) in STATES {
        if county < counties {
            return (state, offset);
        }
        county -= counties;
    }
    unreachable!("a county number is below the number of counties")
}

/// A random place from `draws`; in Georgia if `georgia`.
pub(crate) fn place(draws: Draws, georgia: bool) -> Place {
    let county = if georgia { 254 + draws.int(0, 0, 158) } else { draws.int(0, 0, NUM_COUNTIES - 1) };
    let (state, offset) = state_of(county);
    Place {
        street_number: draws.int(1, 1, 999).to_string(),
        street_name: pick(&STREETS, draws, 2),
        street_type: pick(&STREET_TYPES, draws, 3),
        suite: format!("Suite {}", draws.int(4, 1, 99)),
        city: pick(&CITIES, draws, 5),
        county: format!("{} County", STREETS[county as usize % STREETS.len()]),
        state,
        zip: format!("{:05}", 10_000 + county * 28 + draws.int(6, 0, 27)),
        offset,
    }
}

/// One of `words`, uniformly.
pub(crate) fn pick<const N: usize>(words: &[&'static str; N], draws: Draws, draw: u64) -> &'static str {
    words[draws.index(draw, N)]
}

#[rustfmt::skip]
pub(crate) const STREETS: [&str; 40] = [
    "Alder", "Aspen", "Bay", "Beech", "Birch", "Bridge", "Canal", "Cedar", "Chapel", "Cherry", "Church", "Cliff", "Dogwood",
    "Elm", "Farm", "Fern", "Garden", "Harbor", "Hazel", "Hickory", "Hill", "Juniper", "Lake", "Laurel", "Linden", "Locust",
    "Main", "Market", "Meadow", "Mill", "Orchard", "Park", "Poplar", "Quarry", "Railroad", "School", "Sycamore", "Valley",
    "Walnut", "Willow",
];
const STREET_TYPES: [&str; 8] = ["Street", "Avenue", "Road", "Lane", "Drive", "Court", "Way", "Boulevard"];
#[rustfmt::skip]
const CITIES: [&str; 32] = [
    "Arden", "Belmere", "Brookdale", "Carrow", "Coldwater", "Cresthill", "Dunmore", "Eastham", "Fairmead", "Fernley",
    "Glenrock", "Granby", "Harwick", "Hollis", "Ironwood", "Kenmore", "Larkspur", "Lindale", "Marlow", "Millbrook",
    "Northfield", "Oakhurst", "Pinecrest", "Quincy", "Ridgeway", "Rosedale", "Stanford", "Summit", "Thornton", "Upland",
    "Waverly", "Westbrook",
];
#[rustfmt::skip]
pub(crate) const FIRST_NAMES: [&str; 80] = [
    "Adam", "Agnes", "Albert", "Alice", "Amelia", "Andrew", "Anna", "Arthur", "Barbara", "Beatrice", "Benjamin", "Bernard",
    "Carl", "Caroline", "Catherine", "Charles", "Clara", "Daniel", "David", "Diana", "Dorothy", "Edgar", "Edith", "Edward",
    "Eleanor", "Elias", "Elizabeth", "Emily", "Emma", "Eric", "Esther", "Felix", "Flora", "Frances", "Frank", "George",
    "Gloria", "Grace", "Hannah", "Harold", "Helen", "Henry", "Hugo", "Irene", "Isaac", "Ivan", "Jacob", "James", "Jane",
    "Joseph", "Judith", "Julia", "Karen", "Laura", "Leo", "Louis", "Lucy", "Margaret", "Marie", "Martin", "Mary", "Maxwell",
    "Michael", "Nathan", "Nina", "Noah", "Olive", "Oscar", "Paul", "Peter", "Rachel", "Ralph", "Rosa", "Samuel", "Sarah",
    "Simon", "Sophia", "Thomas", "Vera", "Walter",
];
#[rustfmt::skip]
pub(crate) const LAST_NAMES: [&str; 80] = [
    "Abbott", "Archer", "Baker", "Barnes", "Becker", "Bennett", "Bishop", "Brooks", "Burke", "Carter", "Chapman", "Clark",
    "Coleman", "Cook", "Cooper", "Cross", "Dawson", "Dean", "Dixon", "Drake", "Ellis", "Evans", "Farmer", "Fisher",
    "Fletcher", "Foster", "Fox", "Gardner", "Gibson", "Graham", "Grant", "Gray", "Hale", "Harper", "Hayes", "Hoffman",
    "Holmes", "Hudson", "Hunter", "Irwin", "Jennings", "Jordan", "Keller", "Knight", "Lambert", "Lawson", "Lewis", "Lowe",
    "Marsh", "Mason", "Mercer", "Miller", "Moore", "Morgan", "Nash", "Nolan", "Norris", "Osborne", "Owens", "Palmer",
    "Parker", "Pearce", "Porter", "Price", "Quinn", "Reed", "Rhodes", "Ross", "Sawyer", "Shaw", "Sloan", "Stone", "Tanner",
    "Taylor", "Turner", "Wagner", "Walker", "Webb", "Weber", "Young",
];
#[rustfmt::skip]
pub(crate) const COUNTRIES: [&str; 30] = [
    "Argentina", "Australia", "Austria", "Belgium", "Brazil", "Canada", "Chile", "China", "Denmark", "Egypt", "Finland",
    "France", "Germany", "Greece", "India", "Ireland", "Italy", "Japan", "Kenya", "Mexico", "Morocco", "Netherlands",
    "Norway", "Peru", "Poland", "Portugal", "Spain", "Sweden", "Turkey", "United States",
];
/// Mail providers, in a domain reserved for examples.
pub(crate) const PROVIDERS: [&str; 6] =
    ["mail.example", "post.example", "inbox.example", "web.example", "letters.example", "home.example"];
#[rustfmt::skip]
pub(crate) const COLORS: [&str; 16] = [
    "amber", "beige", "black", "blue", "brown", "crimson", "gold", "green", "grey", "ivory", "orange", "pink", "purple", "red",
    "white", "yellow",
];

/// Category, share of the items in ten-thousandths, and number of classes.
pub(crate) const CATEGORIES: [(&str, i64, i64); 9] = [
    ("Home & Kitchen", 277, 6),
    ("Music", 4_520, 16),
    ("Books", 2_998, 5),
    ("Clothing & Accessories", 363, 11),
    ("Electronics", 396, 8),
    ("Tools & Home Improvement", 221, 7),
    ("Toys & Games", 214, 14),
    ("Movies & TV", 752, 2),
    ("Sports & Outdoors", 260, 10),
];
/// Shares of the book classes in thousandths; classes of other categories have equal shares.
pub(crate) const BOOK_CLASSES: [i64; 5] = [230, 275, 181, 157, 157];
/// Number of the category Books.
pub(crate) const BOOKS: i64 = 3;
/// Names of classes, by number.
#[rustfmt::skip]
pub(crate) const CLASS_WORDS: [&str; 16] = [
    "classic", "modern", "compact", "family", "travel", "studio", "garden", "junior", "senior", "outdoor", "winter",
    "summer", "festival", "workshop", "collector", "everyday",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_sort_like_numbers() {
        assert_eq!(id16(0), "AAAAAAAAAAAAAAAA");
        assert_eq!(id16(27), "AAAAAAAAAAAAAABB");
        assert!(id16(25) < id16(26) && id16(675) < id16(676));
        assert_eq!(id16(u64::MAX).len(), 16);
    }

    #[test]
    fn counties_add_up_and_keep_their_offsets() {
        assert_eq!(STATES.iter().map(|state| state.1).sum::<i64>(), NUM_COUNTIES);
        let share = |offset| {
            let counties: i64 = STATES.iter().filter(|state| state.2 == offset).map(|state| state.1).sum();
            (counties * 1_000 + NUM_COUNTIES / 2) / NUM_COUNTIES
        };
        // In thousandths of all counties.
        assert_eq!([-6, -5, -7, -8, -9, -10].map(share), [455, 376, 112, 48, 7, 1]);
        assert_eq!((state_of(254), state_of(254 + 158)), (("GA", -5), ("GA", -5)));
        assert_eq!(state_of(NUM_COUNTIES - 1), ("SD", -7));
    }

    #[test]
    fn categories_have_the_shares_of_the_specification() {
        assert_eq!(CATEGORIES.iter().map(|category| category.1).sum::<i64>(), 10_001);
        assert_eq!(BOOK_CLASSES.iter().sum::<i64>(), 1_000);
        assert_eq!(CATEGORIES[BOOKS as usize - 1].0, "Books");
        assert_eq!(CATEGORIES.iter().map(|category| category.2).max(), Some(CLASS_WORDS.len() as i64));
    }
}
