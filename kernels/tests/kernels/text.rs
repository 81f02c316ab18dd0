//! Texts in pipelines: every function against plain Rust, over lengths, characters and NULLs that find bugs.

use std::collections::HashMap;

use millpond_kernels::codegen::ir::*;
use millpond_kernels::join::TableInput;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, LookupInput};
use millpond_kernels::text::{self, Working};
use millpond_kernels::{Images, abi};
use millpond_memory::{DeviceBuffer, DeviceView};

use crate::pipeline_rig::{Random, Rig};

type Texts = Vec<Option<Vec<u8>>>;

/// What a row's text is to become.
type Expected<'a> = &'a dyn Fn(Option<&str>) -> Out;

/// A column of the test: texts or numbers.
enum Column {
    Texts(Texts),
    Numbers(Vec<Option<i64>>),
}

/// A value that came out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Out {
    Null,
    Bool(bool),
    Int(i128),
    Text(Vec<u8>),
}

impl From<bool> for Out {
    fn from(value: bool) -> Out {
        Out::Bool(value)
    }
}

impl From<usize> for Out {
    fn from(value: usize) -> Out {
        Out::Int(value as i128)
    }
}

impl From<&[u8]> for Out {
    fn from(value: &[u8]) -> Out {
        Out::Text(value.to_vec())
    }
}

impl From<&str> for Out {
    fn from(value: &str) -> Out {
        Out::Text(value.as_bytes().to_vec())
    }
}

impl<T: Into<Out>> From<Option<T>> for Out {
    fn from(value: Option<T>) -> Out {
        value.map_or(Out::Null, Into::into)
    }
}

/// Offsets and bytes as the device has them: a NULL row has bytes of its own, which nothing may look at.
fn stored(texts: &Texts) -> Vec<u8> {
    let mut offset = (texts.len() as u32 + 1) * 4;
    let mut offsets = offset.to_le_bytes().to_vec();
    let mut bytes = Vec::new();
    for text in texts {
        let own = text.as_deref().unwrap_or(b"under a NULL");
        bytes.extend_from_slice(own);
        offset += own.len() as u32;
        offsets.extend(offset.to_le_bytes());
    }
    offsets.extend(bytes);
    offsets
}

fn bits(bits: impl Iterator<Item = bool>) -> Vec<u8> {
    let bits: Vec<bool> = bits.collect();
    bits.chunks(8).map(|eight| eight.iter().enumerate().fold(0, |byte, (i, bit)| byte | u8::from(*bit) << i)).collect()
}

/// A pipeline over texts, its nodes made by the caller.
struct Bench {
    rig: Rig,
    images: Images,
    columns: Vec<Column>,
    tables: Vec<Texts>,
    pub graph: Graph,
    filters: Vec<NodeId>,
    /// Outputs are read back as views of another pipeline first.
    twice: bool,
    /// How much larger than planned the room for texts is.
    times: u64,
}

impl Bench {
    fn new() -> Bench {
        let rig = Rig::new();
        let images = Images::new(&rig.device);
        let graph = Graph::new();
        Bench { rig, images, columns: vec![], tables: vec![], graph, filters: vec![], twice: false, times: 4 }
    }

    fn texts<'t>(&mut self, texts: impl IntoIterator<Item = Option<&'t [u8]>>) -> NodeId {
        let texts: Texts = texts.into_iter().map(|text| text.map(<[u8]>::to_vec)).collect();
        let ty = Ty::new(Repr::Text).nullable(texts.contains(&None));
        self.columns.push(Column::Texts(texts));
        self.graph.column(self.columns.len() as u32 - 1, ty)
    }

    fn numbers(&mut self, numbers: Vec<Option<i64>>) -> NodeId {
        let ty = Ty::new(Repr::I64).nullable(numbers.contains(&None));
        self.columns.push(Column::Numbers(numbers));
        self.graph.column(self.columns.len() as u32 - 1, ty)
    }

    /// A text that is the same in every row: entry 0 of a table.
    fn constant(&mut self, text: &[u8]) -> NodeId {
        self.tables.push(vec![Some(text.to_vec())]);
        let code = self.graph.integer(0, Repr::U32);
        self.graph.lookup(code, self.tables.len() as u32 - 1, Ty::new(Repr::Text)).expect("a code")
    }

    fn rows(&self) -> usize {
        match &self.columns[0] {
            Column::Texts(texts) => texts.len(),
            Column::Numbers(numbers) => numbers.len(),
        }
    }

    fn upload(&self, bytes: &[u8]) -> DeviceView {
        // An empty upload is none.
        let bytes = if bytes.is_empty() { &[0] } else { bytes };
        self.rig.upload(bytes, &self.rig.stream).as_view().clone()
    }

    fn column(&self, column: &Column) -> (ColumnSpec, ColumnInput) {
        let (physical, repr, valid, bytes): (_, _, Vec<bool>, _) = match column {
            Column::Texts(texts) => {
                (Physical::Text, Repr::Text, texts.iter().map(Option::is_some).collect(), stored(texts))
            }
            Column::Numbers(numbers) => {
                let bytes = numbers.iter().flat_map(|n| n.unwrap_or(0x5a5a_5a5a_5a5a).to_le_bytes()).collect();
                (Physical::I64, Repr::I64, numbers.iter().map(Option::is_some).collect(), bytes)
            }
        };
        let nullable = valid.contains(&false);
        let spec = ColumnSpec { physical, has_base: false, ty: Ty::new(repr).nullable(nullable) };
        let validity = nullable.then(|| self.upload(&bits(valid.iter().copied())));
        (spec, ColumnInput { values: self.upload(&bytes), validity, base: 0 })
    }

    /// The outputs of the rows that pass, and the error word.
    fn run(&self, outputs: &[NodeId]) -> (Vec<Vec<Out>>, u64) {
        let (specs, inputs): (Vec<_>, Vec<_>) = self.columns.iter().map(|column| self.column(column)).unzip();
        let lookups: Vec<LookupInput> = self
            .tables
            .iter()
            .map(|texts| LookupInput { values: self.upload(&stored(texts)), validity: None })
            .collect();
        let table = LookupSpec { physical: Physical::Text, ty: Ty::new(Repr::Text) };
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: specs,
            literals: vec![],
            lookups: vec![table; lookups.len()],
            tables: vec![],
            expanded: false,
            graph: self.graph.clone(),
            filters: self.filters.clone(),
            sink: SinkSpec::Materialise { outputs: outputs.to_vec() },
        };
        // Where the bytes of the outputs' views lie.
        let mut reached: Vec<DeviceView> = inputs.iter().map(|column| column.values.clone()).collect();
        reached.extend(lookups.iter().map(|table| table.values.clone()));
        let extent = ExtentInput {
            rows: ExtentRows::Known(self.rows() as u64),
            columns: inputs.into_iter().map(Some).collect(),
        };
        let (mut output, mut layout, arena) = self.materialise(&spec, &extent, &lookups, &[]);
        reached.extend(arena.map(|arena| arena.as_view().clone()));
        if self.twice {
            let mut graph = Graph::new();
            let types: Vec<Ty> = spec.output_types();
            let outputs = types.iter().enumerate().map(|(i, ty)| graph.column(i as u32, *ty)).collect();
            let again = PipelineSpec {
                columns: layout.column_specs(),
                lookups: vec![],
                graph,
                filters: vec![],
                sink: SinkSpec::Materialise { outputs },
                ..spec
            };
            let extent = layout.extent(output.as_view()).expect("it is of this layout");
            let (next, next_layout, _) = self.materialise(&again, &extent, &[], &reached);
            reached.push(output.as_view().clone());
            (output, layout) = (next, next_layout);
        }
        reached.push(output.as_view().clone());
        let result = self.read(&output, &layout, &reached);
        self.rig.assert_clean();
        result
    }

    fn materialise(
        &self,
        spec: &PipelineSpec,
        extent: &ExtentInput,
        lookups: &[LookupInput],
        texts: &[DeviceView],
    ) -> (DeviceBuffer, millpond_kernels::layout::OutputLayout, Option<DeviceBuffer>) {
        let pipeline = self.rig.pipeline(spec);
        assert!(pipeline.compiled().pipeline.instructions <= 2_500, "{}", pipeline.compiled().pipeline.instructions);
        let extents = std::slice::from_ref(extent);
        let layout = pipeline.output_layout(extents);
        let output = DeviceBuffer::new(layout.bytes, &self.rig.stream, &self.rig.pool).expect("room");
        let input = Input { extents, lookups, texts, ..Input::default() };
        let arena = match text::arena_bytes(spec, &input, self.times) {
            0 => None,
            bytes => Some(DeviceBuffer::zeroed(bytes as usize, &self.rig.stream, &self.rig.pool).expect("room")),
        };
        let input = Input { arena: arena.as_ref().map(DeviceBuffer::as_view), ..input };
        pipeline.materialise(input, output.as_view(), &layout, &self.rig.stream).unwrap_or_else(|e| panic!("{e}"));
        (output, layout, arena)
    }

    fn read(
        &self,
        output: &DeviceBuffer,
        layout: &millpond_kernels::layout::OutputLayout,
        reached: &[DeviceView],
    ) -> (Vec<Vec<Out>>, u64) {
        let rig = &self.rig;
        let control = rig.download(&output.view(0..16).expect("a control block"));
        let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (error, rows) = (word(&control, 0), word(&control, 8) as usize);
        let part = |start: usize, len: usize| match len {
            0 => vec![],
            len => rig.download(&output.view(start..start + len).expect("inside")),
        };
        let mut columns = Vec::new();
        for column in &layout.columns {
            let validity = column.validity.as_ref().map(|range| part(range.start, rows.div_ceil(8)));
            let valid = |row: usize| validity.as_ref().is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1);
            let mut values = Vec::new();
            if column.physical == Physical::View {
                let extent = layout.extent(output.as_view()).expect("it is of this layout");
                let views = output.view(column.values.clone()).expect("inside");
                let place = Working::new(layout.rows_upper_bound);
                let working = DeviceBuffer::new(place.bytes(), &rig.stream, &rig.pool).expect("room");
                text::dense_ends(&self.images, &views, &extent.rows, working.as_view(), &rig.stream).expect("fits");
                let control = rig.download(&working.view(Working::CONTROL).expect("inside"));
                assert_eq!(word(&control, 0), error, "the error is taken over");
                let total = word(&control, 8) as usize;
                let ends = match rows {
                    0 => vec![],
                    _ => rig.download(&working.view(place.ends()).unwrap().view(0..rows * 8).unwrap()),
                };
                let dense = DeviceBuffer::new(total.max(1), &rig.stream, &rig.pool).expect("room");
                let (views, working) = (&views, working.as_view());
                text::pack(&self.images, views, reached, &extent.rows, working, dense.as_view(), &rig.stream)
                    .expect("fits");
                let bytes = match total {
                    0 => vec![],
                    _ => rig.download(&dense.view(0..total).expect("inside")),
                };
                let mut from = 0;
                for row in 0..rows {
                    let to = word(&ends, row * 8) as usize;
                    values.push(if valid(row) {
                        Out::Text(bytes[from..to].to_vec())
                    } else {
                        assert_eq!(from, to, "a NULL takes no bytes");
                        Out::Null
                    });
                    from = to;
                }
                assert_eq!(from, total);
            } else {
                let bytes = part(column.values.start, column.physical.value_bytes(rows as u64) as usize);
                for row in 0..rows {
                    values.push(match column.physical {
                        _ if !valid(row) => Out::Null,
                        Physical::Bit => Out::Bool(bytes[row / 8] >> (row % 8) & 1 == 1),
                        Physical::I32 => Out::Int(i32::from_le_bytes(bytes[row * 4..][..4].try_into().unwrap()).into()),
                        Physical::I64 => Out::Int(i64::from_le_bytes(bytes[row * 8..][..8].try_into().unwrap()).into()),
                        Physical::U64 => Out::Int(word(&bytes, row * 8).into()),
                        other => panic!("no test reads {other:?}"),
                    });
                }
            }
            columns.push(values);
        }
        (columns, error)
    }

    /// Runs one output that must not fail.
    fn values(&self, output: NodeId) -> Vec<Out> {
        let (mut columns, error) = self.run(&[output]);
        assert_eq!(error, 0, "{:?}", ErrorCode::from_word(error));
        columns.remove(0)
    }
}

/// Texts of the lengths at which something changes, plain and with characters of two to four bytes.
fn some_texts() -> Vec<String> {
    let mut texts: Vec<String> =
        ["", "a", "ab", "special requests", "é", "日本語", "a😀b", "ſtop", "\u{212a}elvin", "  x  "]
            .iter()
            .map(|text| text.to_string())
            .collect();
    for length in [3, 4, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65] {
        let letters = "abcdefghijklmnopqrstuvwxyz";
        texts.push((0..length).map(|i| letters.as_bytes()[(i * 7 + length) % 26] as char).collect());
        texts.push("é".repeat(length / 2) + "zz");
    }
    texts.push("sleep special the quick requests".into());
    texts.push("special".repeat(9) + "requests");
    texts.push("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab".into());
    texts
}

fn as_bytes(texts: &[String]) -> impl Iterator<Item = Option<&[u8]>> {
    texts.iter().map(|text| Some(text.as_bytes()))
}

/// Every third is NULL.
fn with_nulls(texts: &[String]) -> Vec<Option<&str>> {
    texts.iter().enumerate().map(|(i, text)| (i % 3 != 1).then_some(text.as_str())).collect()
}

fn assert_same(what: &str, got: &[Out], expected: Vec<Out>) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(got, expected, "{what}, row {row}");
    }
}

#[test]
fn texts_come_through_and_are_packed() {
    let million = vec![b'x'; 1 << 20];
    for twice in [false, true] {
        for (name, texts) in [
            ("none", vec![]),
            ("one", vec![Some(&b"abc"[..])]),
            ("all NULL", vec![None; 40]),
            ("all empty", vec![Some(&b""[..]); 33]),
            ("a long one", vec![Some(&b"ab"[..]), Some(&million), None, Some(&b"c"[..])]),
            ("not UTF-8", vec![Some(&b"\xff\x00\xfe"[..]); 3]),
        ] {
            let mut bench = Bench::new();
            bench.twice = twice;
            let column = bench.texts(texts.clone());
            if texts.is_empty() {
                assert_eq!(bench.values(column), []);
                continue;
            }
            assert_same(name, &bench.values(column), texts.into_iter().map(Out::from).collect());
        }
    }
}

#[test]
fn random_lengths_are_packed_whatever_their_skew() {
    let mut random = Random(7);
    for most in [3, 20, 60, 900] {
        let texts: Vec<Option<Vec<u8>>> = (0..700)
            .map(|row| {
                let length = if row % 97 == 0 { most * 4 } else { random.below(most) };
                (random.below(5) != 0).then(|| (0..length).map(|_| random.next() as u8).collect())
            })
            .collect();
        let mut bench = Bench::new();
        bench.twice = most == 20;
        let column = bench.texts(texts.iter().map(Option::as_deref));
        let half: Vec<Option<i64>> = (0..700).map(|row| Some(row % 2)).collect();
        let even = bench.numbers(half);
        let zero = bench.graph.integer(0, Repr::I64);
        let even = bench.graph.compare(Comparison::Equal, even, zero).expect("numbers");
        bench.filters.push(even);
        let kept = texts.iter().step_by(2).map(|text| Out::from(text.as_deref())).collect();
        assert_same("the even rows", &bench.values(column), kept);
    }
}

#[test]
fn comparisons_are_those_of_the_bytes() {
    let texts = some_texts();
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for (i, a) in texts.iter().enumerate() {
        // Neighbours, itself, its continuations, and one that differs late.
        let mut late = a.clone();
        late.pop();
        for b in [a, &texts[(i + 1) % texts.len()], &format!("{a}\0"), &format!("{a}b"), &late, &format!("{late}~")] {
            left.push((i % 7 != 3).then(|| a.clone()));
            right.push((i % 5 != 3).then(|| b.clone()));
        }
    }
    let bytes = |texts: &[Option<String>]| -> Vec<Option<Vec<u8>>> {
        texts.iter().map(|text| text.as_ref().map(|text| text.as_bytes().to_vec())).collect()
    };
    let (a, b) = (bytes(&left), bytes(&right));
    let mut bench = Bench::new();
    let l = bench.texts(a.iter().map(Option::as_deref));
    let r = bench.texts(b.iter().map(Option::as_deref));
    use Comparison::*;
    let operators = [Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, Distinct, NotDistinct];
    let nodes: Vec<NodeId> = operators.iter().map(|op| bench.graph.compare(*op, l, r).expect("texts")).collect();
    let (columns, error) = bench.run(&nodes);
    assert_eq!(error, 0);
    for (op, got) in operators.iter().zip(&columns) {
        let expected = left.iter().zip(&right).map(|(a, b)| {
            let known = a.as_ref().zip(b.as_ref()).map(|(a, b)| match op {
                Equal => a == b,
                NotEqual => a != b,
                Less => a < b,
                LessEqual => a <= b,
                Greater => a > b,
                GreaterEqual => a >= b,
                _ => false,
            });
            match op {
                Distinct => Out::from(a != b),
                NotDistinct => Out::from(a == b),
                _ => Out::from(known),
            }
        });
        assert_same(&format!("{op:?}"), got, expected.collect());
    }
}

#[test]
fn in_lists_and_choices_of_texts() {
    let texts = some_texts();
    let column = with_nulls(&texts);
    let mut bench = Bench::new();
    let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
    let list = [&b"a"[..], b"special requests", "é".as_bytes(), b""].map(|text| bench.constant(text));
    let inside = bench.graph.in_list(c, list.to_vec(), false).expect("texts");
    let outside = bench.graph.in_list(c, list.to_vec(), true).expect("texts");
    let coalesced = bench.graph.coalesce(&[c, list[1]]).expect("texts");
    let either = bench.graph.case(vec![(inside, list[2])], Some(c)).expect("texts");
    let only = bench.graph.case(vec![(inside, c)], None).expect("texts");
    let null = bench.graph.null_if(c, list[0]).expect("texts");
    let (columns, error) = bench.run(&[inside, outside, coalesced, either, only, null]);
    assert_eq!(error, 0);
    let wanted = ["a", "special requests", "é", ""];
    let hit = |text: Option<&str>| text.map(|text| wanted.contains(&text));
    let expected: [Expected<'_>; 6] = [
        &|text| hit(text).into(),
        &|text| hit(text).map(|hit| !hit).into(),
        &|text| text.or(Some("special requests")).into(),
        &|text| if hit(text) == Some(true) { "é".into() } else { text.into() },
        &|text| text.filter(|_| hit(text) == Some(true)).into(),
        &|text| text.filter(|text| *text != "a").into(),
    ];
    for (i, expected) in expected.iter().enumerate() {
        assert_same(&format!("output {i}"), &columns[i], column.iter().map(|text| expected(*text)).collect());
    }
}

/// LIKE by trying everything, over characters; `%` and `_` as they are written.
fn like(text: &[char], pattern: &[char], equal: &dyn Fn(char, char) -> bool) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['%', rest @ ..] => (0..=text.len()).any(|skipped| like(&text[skipped..], rest, equal)),
        ['_', rest @ ..] => !text.is_empty() && like(&text[1..], rest, equal),
        [own, rest @ ..] => text.first().is_some_and(|c| equal(*c, *own)) && like(&text[1..], rest, equal),
    }
}

fn coded(pattern: &str) -> Vec<u8> {
    let code = |c: char| match c {
        '%' => vec![ANY_CHARACTERS],
        '_' => vec![ONE_CHARACTER],
        c => c.to_string().into_bytes(),
    };
    pattern.chars().flat_map(code).collect()
}

#[test]
fn like_matches_as_its_definition() {
    let texts = some_texts();
    let column = with_nulls(&texts);
    let patterns = [
        "",
        "%",
        "%%",
        "_",
        "__",
        "%_",
        "_%_",
        "a",
        "a%",
        "%b",
        "%special%requests%",
        "special%",
        "%requests",
        "%quick%",
        "s%l%",
        "%é%",
        "_é%",
        "é%zz",
        "%日_語%",
        "a_b",
        "%a%b",
        "%ab",
        "%aab%",
        "special_requests",
        "%e%e%e%e%s",
        "%pecialspecialspecialr_quests",
    ];
    let mut bench = Bench::new();
    let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
    let mut nodes = Vec::new();
    for pattern in patterns {
        let pattern = bench.constant(&coded(pattern));
        nodes.push(bench.graph.text(TextFunction::Like, &[c, pattern]).expect("texts"));
    }
    for (pattern, node) in patterns.iter().zip(&nodes) {
        let pattern: Vec<char> = pattern.chars().collect();
        let matches = |text: &str| like(&text.chars().collect::<Vec<_>>(), &pattern, &|a, b| a == b);
        let expected = column.iter().map(|text| text.map(matches).into()).collect();
        assert_same(&format!("LIKE {pattern:?}"), &bench.values(*node), expected);
    }
}

#[test]
fn like_in_any_case_knows_the_long_s_and_the_kelvin_sign() {
    let mut texts = some_texts();
    texts.extend(["STOP", "KELVIN", "Special ReqUests", "kelvin", "ſſ", "Ss"].map(String::from));
    let patterns = ["stop", "%s%", "kelvin", "k%", "%special%requests%", "s_op", "__", "%n", "ss"];
    let mut bench = Bench::new();
    let c = bench.texts(as_bytes(&texts));
    let mut nodes = Vec::new();
    for pattern in patterns {
        let pattern = bench.constant(&coded(pattern));
        nodes.push(bench.graph.text(TextFunction::LikeAnyCase, &[c, pattern]).expect("texts"));
    }
    let folded = |c: char| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    let (columns, _) = bench.run(&nodes);
    for (pattern, got) in patterns.iter().zip(&columns) {
        let pattern: Vec<char> = pattern.chars().collect();
        let matches = |text: &String| like(&text.chars().collect::<Vec<_>>(), &pattern, &|a, b| folded(a) == b);
        assert_same(&format!("ILIKE {pattern:?}"), got, texts.iter().map(|text| matches(text).into()).collect());
    }
}

#[test]
fn searches_and_measures() {
    let texts = some_texts();
    let column = with_nulls(&texts);
    for wanted in ["", "a", "special", "é", "語", "ab", "aaaaaaaaaaaab", "requests", "special requests"] {
        let mut bench = Bench::new();
        let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
        let w = bench.constant(wanted.as_bytes());
        use TextFunction::*;
        let two = [StartsWith, EndsWith, Contains, Position].map(|f| bench.graph.text(f, &[c, w]).expect("texts"));
        let one = [Bytes, Characters].map(|f| bench.graph.text(f, &[c]).expect("a text"));
        let (columns, error) = bench.run(&[two, [one[0], one[1], c, c]].concat()[..6]);
        assert_eq!(error, 0);
        let expected: [&dyn Fn(&str) -> Out; 6] = [
            &|text| text.starts_with(wanted).into(),
            &|text| text.ends_with(wanted).into(),
            &|text| text.contains(wanted).into(),
            &|text| text.find(wanted).map_or(0, |at| text[..at].chars().count() + 1).into(),
            &|text| text.len().into(),
            &|text| text.chars().count().into(),
        ];
        for (i, expected) in expected.iter().enumerate() {
            let expected = column.iter().map(|text| text.map_or(Out::Null, expected)).collect();
            assert_same(&format!("function {i} of {wanted:?}"), &columns[i], expected);
        }
    }
}

#[test]
fn parts_of_texts_count_characters() {
    let texts = some_texts();
    let (mut rows, mut starts, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for text in &texts {
        for start in [i64::MIN + 1, -3, 0, 1, 2, 5, 9, 40, i64::MAX] {
            for count in [0, 1, 2, 8, 33, i64::MAX] {
                rows.push(text.as_str());
                starts.push(Some(start));
                counts.push(Some(count));
            }
        }
    }
    let mut bench = Bench::new();
    let c = bench.texts(rows.iter().map(|text| Some(text.as_bytes())));
    let (s, n) = (bench.numbers(starts.clone()), bench.numbers(counts.clone()));
    let part = bench.graph.text(TextFunction::Substring, &[c, s, n]).expect("a text and numbers");
    let left = bench.graph.text(TextFunction::Left, &[c, s]).expect("a text and a number");
    let right = bench.graph.text(TextFunction::Right, &[c, s]).expect("a text and a number");
    let (columns, error) = bench.run(&[part, left, right]);
    assert_eq!(error, 0);
    for row in 0..rows.len() {
        let (start, count) = (i128::from(starts[row].unwrap()), i128::from(counts[row].unwrap()));
        let all: Vec<char> = rows[row].chars().collect();
        let number = |place: i128| place + 1;
        let inside = |place: usize| (start..start + count).contains(&number(place as i128));
        let wanted: String = all.iter().enumerate().filter(|(i, _)| inside(*i)).map(|(_, c)| *c).collect();
        assert_eq!(columns[0][row], Out::from(wanted.as_str()), "{:?} from {start} for {count}", rows[row]);
        let length = all.len() as i128;
        let kept = if start >= 0 { start.min(length) } else { (length + start).max(0) } as usize;
        let wanted: String = all[..kept].iter().collect();
        assert_eq!(columns[1][row], Out::from(wanted.as_str()), "left of {:?}: {start}", rows[row]);
        let wanted: String = all[all.len() - kept..].iter().collect();
        assert_eq!(columns[2][row], Out::from(wanted.as_str()), "right of {:?}: {start}", rows[row]);
    }
}

#[test]
fn a_negative_number_of_characters_is_an_error_where_it_is_reached() {
    let texts = ["abc", "def", "ghi"].map(String::from);
    let run = |counts: Vec<Option<i64>>, keep: &str| {
        let mut bench = Bench::new();
        let c = bench.texts(as_bytes(&texts));
        let n = bench.numbers(counts);
        let one = bench.graph.integer(1, Repr::I64);
        let part = bench.graph.text(TextFunction::Substring, &[c, one, n]).expect("a text and numbers");
        let kept = bench.constant(keep.as_bytes());
        let kept = bench.graph.compare(Comparison::Equal, c, kept).expect("texts");
        bench.filters.push(kept);
        let (_, error) = bench.run(&[part]);
        ErrorCode::from_word(error).map(|(code, _)| code)
    };
    assert_eq!(run(vec![Some(1), Some(-1), Some(1)], "def"), Some(ErrorCode::Argument));
    assert_eq!(run(vec![Some(1), Some(-1), Some(1)], "abc"), None, "an earlier filter drops the row");
    assert_eq!(run(vec![Some(1), None, Some(1)], "def"), None, "NULL raises nothing");
}

#[test]
fn trims_take_characters_of_a_set() {
    let mut texts = some_texts();
    texts.extend(["xxaxx", "éaé", "日日", " \t a ", "abcabc"].map(String::from));
    for set in [" ", "ax", "é", "日é", "", "abcdefghijklmnopqrstuvwxyzé "] {
        let mut bench = Bench::new();
        let c = bench.texts(as_bytes(&texts));
        let s = bench.constant(set.as_bytes());
        use TextFunction::*;
        let nodes = [TrimStart, TrimEnd, TrimBoth].map(|f| bench.graph.text(f, &[c, s]).expect("texts"));
        let (columns, error) = bench.run(&nodes);
        assert_eq!(error, 0);
        let own = |c: char| set.contains(c);
        let expected: [&dyn Fn(&String) -> Out; 3] =
            [&|text| text.trim_start_matches(own).into(), &|text| text.trim_end_matches(own).into(), &|text| {
                text.trim_matches(own).into()
            }];
        for (i, expected) in expected.iter().enumerate() {
            assert_same(&format!("trim {i} of {set:?}"), &columns[i], texts.iter().map(expected).collect());
        }
    }
}

#[test]
fn words_order_as_texts_and_hashes_tell_them_apart() {
    let texts = some_texts();
    let mut bench = Bench::new();
    let c = bench.texts(as_bytes(&texts));
    let words = [0, 1, 2].map(|index| bench.graph.text(TextFunction::Word { index }, &[c]).expect("a text"));
    let hash = bench.graph.text(TextFunction::Hash, &[c]).expect("a text");
    let (columns, error) = bench.run(&[words[0], words[1], words[2], hash]);
    assert_eq!(error, 0);
    for (row, text) in texts.iter().enumerate() {
        for (index, got) in columns[..3].iter().enumerate() {
            let mut bytes = [0; 8];
            let part = text.as_bytes().get(index * 8..).unwrap_or(&[]);
            let part = &part[..part.len().min(8)];
            bytes[..part.len()].copy_from_slice(part);
            assert_eq!(got[row], Out::Int(u64::from_be_bytes(bytes).into()), "word {index} of {text:?}");
        }
    }
    let mut hashes: Vec<String> = columns[3].iter().map(|hash| format!("{hash:?}")).collect();
    hashes.sort();
    hashes.dedup();
    let mut distinct = texts.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(hashes.len(), distinct.len());
}

#[test]
fn what_has_no_device_form_is_refused_with_its_name() {
    let mut bench = Bench::new();
    let c = bench.texts([Some(&b"a"[..])]);
    let number = bench.graph.integer(1, Repr::I64);
    assert!(bench.graph.arithmetic(Arithmetic::Add, c, c, Overflow::Wrap).is_err());
    assert!(bench.graph.convert(c, Repr::I64, Overflow::Null).is_err());
    assert!(bench.graph.compare(Comparison::Equal, c, number).is_err());
    assert!(bench.graph.text(TextFunction::Like, &[c, number]).is_err());
    assert!(bench.graph.text(TextFunction::Left, &[c]).is_err());
    let refused = |sink: SinkSpec| {
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: vec![ColumnSpec { physical: Physical::Text, has_base: false, ty: Ty::new(Repr::Text) }],
            literals: vec![],
            lookups: vec![],
            tables: vec![],
            expanded: false,
            graph: bench.graph.clone(),
            filters: vec![],
            sink,
        };
        let error = bench.rig.cache.pipeline(&spec).expect_err("it has no device form");
        assert!(error.is_unsupported(), "{error}");
        error.to_string()
    };
    let mut least = AggregateSpec::new(vec![]);
    least.accumulate(&bench.graph, Accumulator { aggregate: Aggregate::Min(c), filter: None });
    assert_eq!(refused(SinkSpec::Aggregate(least)), "an aggregate of a text has no device form");
    // The number of bytes at a control block's place is the abi's.
    assert_eq!(abi::CONTROL_ROWS, 8);
}

impl Bench {
    /// Rows of each group, from several launches over the same rows; the table grows between them.
    fn grouped(&self, keys: &[NodeId], launches: usize) -> HashMap<Vec<Out>, i128> {
        let (specs, inputs): (Vec<_>, Vec<_>) = self.columns.iter().map(|column| self.column(column)).unzip();
        let mut aggregate = AggregateSpec::new(keys.to_vec());
        aggregate.accumulate(&self.graph, Accumulator { aggregate: Aggregate::CountStar, filter: None });
        let spec = PipelineSpec {
            extents: Extents::One,
            columns: specs,
            literals: vec![],
            lookups: vec![],
            tables: vec![],
            expanded: false,
            graph: self.graph.clone(),
            filters: vec![],
            sink: SinkSpec::Aggregate(aggregate),
        };
        let reached: Vec<DeviceView> = inputs.iter().map(|column| column.values.clone()).collect();
        let rows = self.rows() as u64;
        let extent = ExtentInput { rows: ExtentRows::Known(rows), columns: inputs.into_iter().map(Some).collect() };
        let (rig, pipeline) = (&self.rig, self.rig.pipeline(&spec));
        let mut layout = pipeline.state_layout(rows).expect("few");
        let mut state = DeviceBuffer::zeroed(layout.bytes, &rig.stream, &rig.pool).expect("room");
        for launch in 0..launches {
            if launch > 0 {
                let larger = pipeline.state_layout(rows << (2 * launch)).expect("few");
                let next = DeviceBuffer::zeroed(larger.bytes, &rig.stream, &rig.pool).expect("room");
                pipeline.rehash(state.as_view(), &layout, next.as_view(), &larger, &rig.stream).expect("fits");
                (state, layout) = (next, larger);
            }
            let input = Input { extents: std::slice::from_ref(&extent), texts: &reached, ..Input::default() };
            pipeline.accumulate(input, state.as_view(), &layout, &rig.stream).unwrap_or_else(|e| panic!("{e}"));
        }
        let out_layout = pipeline.emit_layout(&layout, rows).expect("few");
        let output = DeviceBuffer::new(out_layout.bytes, &rig.stream, &rig.pool).expect("room");
        pipeline.emit(state.as_view(), &layout, output.as_view(), &out_layout, &rig.stream).expect("fits");
        let reached: Vec<DeviceView> = reached.into_iter().chain([output.as_view().clone()]).collect();
        let (columns, error) = self.read(&output, &out_layout, &reached);
        assert_eq!(error, 0, "{:?}", ErrorCode::from_word(error));
        rig.assert_clean();
        let mut groups = HashMap::new();
        for group in 0..columns[0].len() {
            let key = columns[..keys.len()].iter().map(|column| column[group].clone()).collect();
            let Out::Int(count) = columns[keys.len()][group] else { panic!("a count is a number") };
            assert!(groups.insert(key, count).is_none(), "a group comes once");
        }
        groups
    }
}

#[test]
fn texts_are_keys_of_groups() {
    let million = "x".repeat(1 << 20);
    let another = "x".repeat((1 << 20) - 1) + "y";
    let mut some = some_texts();
    // Alike in length and beginning, up to twelve bytes and beyond.
    some.extend((0..40).map(|i| format!("the same{:0width$}", i % 20, width = if i < 20 { 4 } else { 30 })));
    let mut random = Random(11);
    let mut rows: Vec<Option<&str>> = (0..600)
        .map(|_| (random.below(9) != 0).then(|| some[random.below(some.len() as u64) as usize].as_str()))
        .collect();
    rows.extend([Some(&*million), Some(&another), Some(&million), None]);
    let numbers: Vec<Option<i64>> =
        rows.iter().map(|_| (random.below(4) != 0).then(|| random.below(3) as i64)).collect();

    let mut bench = Bench::new();
    let text = bench.texts(rows.iter().map(|text| text.map(str::as_bytes)));
    let number = bench.numbers(numbers.clone());
    let left = {
        let three = bench.graph.integer(3, Repr::I64);
        bench.graph.text(TextFunction::Left, &[text, three]).expect("a text")
    };
    let short = |text: &Option<&str>| text.map(|text| text.chars().take(3).collect::<String>());
    for (name, keys) in [("a text", vec![text]), ("two texts and a number", vec![left, number, text])] {
        let mut expected: HashMap<Vec<Out>, i128> = HashMap::new();
        for (own, number) in rows.iter().zip(&numbers) {
            let (whole, number) = (Out::from(*own), number.map_or(Out::Null, |number| Out::Int(number.into())));
            let key = match keys.len() {
                1 => vec![whole],
                _ => vec![short(own).map_or(Out::Null, |text| text.as_str().into()), number, whole],
            };
            *expected.entry(key).or_default() += 3;
        }
        assert_eq!(bench.grouped(&keys, 3), expected, "{name}");
    }
}

/// What a function of texts makes of them, row by row.
type Makes<'a> = &'a dyn Fn(&str) -> String;

/// Two letters for one, letters that become others, and neighbours that matter: left to the CPU.
const BEYOND: [&str; 4] = ["\u{149}n", "ΟΔΟΣ", "\u{1e9e}", "\u{10400}"];

#[test]
fn texts_are_made_as_rust_makes_them() {
    let mut texts = some_texts();
    texts.extend(
        ["ÀÉÎÕÜ straße", "ﬀ is left out", "Здравствуй, МИР", "ÿ ſ µ", "pond,mill,,wheel", "a😀b日本語"]
            .map(String::from),
    );
    texts.push("Mixed CASE text, of more than a few words: ÄÖÜ äöü".repeat(20));
    texts.retain(|text| !text.contains(['ﬀ', '\u{212a}']));
    let column = with_nulls(&texts);
    let times: Vec<Option<i64>> = (0..texts.len()).map(|row| (row % 5 != 4).then_some(row as i64 % 9 - 2)).collect();
    let mut bench = Bench::new();
    bench.twice = true;
    let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
    let n = bench.numbers(times.clone());
    let constant = |bench: &mut Bench, text: &str| bench.constant(text.as_bytes());
    let upper = bench.constant(&text::case_table(true));
    let lower = bench.constant(&text::case_table(false));
    let (e, uml, comma, nothing) =
        (constant(&mut bench, "e"), constant(&mut bench, "¨é"), constant(&mut bench, ", "), constant(&mut bench, ""));
    let (from, to) = (constant(&mut bench, "aeé日b"), constant(&mut bench, "é1日x"));
    let ten = bench.graph.integer(10, Repr::I64);
    use TextFunction::*;
    let mut node = |function, of: &[NodeId]| bench.graph.text(function, of).expect("texts");
    let nodes = [
        node(Upper, &[c, upper]),
        node(Lower, &[c, lower]),
        node(Reverse, &[c]),
        node(Replace, &[c, e, uml]),
        node(Replace, &[c, e, nothing]),
        node(Replace, &[c, nothing, e]),
        node(Translate, &[c, from, to]),
        node(PadStart, &[c, ten, uml]),
        node(PadEnd, &[c, ten, nothing]),
        node(Concatenate { strict: true }, &[c, comma, c]),
    ];
    let mut expected: Vec<Makes<'_>> = Vec::new();
    let translate = |text: &str| -> String {
        let to: Vec<char> = "é1日x".chars().collect();
        let as_is = |c: char| "aeé日b".chars().position(|from| from == c).map_or(Some(c), |at| to.get(at).copied());
        text.chars().filter_map(as_is).collect()
    };
    let padded = |text: &str| -> String {
        let missing = 10_usize.saturating_sub(text.chars().count());
        "¨é".chars().cycle().take(missing).chain(text.chars()).take(10).collect()
    };
    expected.push(&|text| text.to_uppercase());
    expected.push(&|text| text.to_lowercase());
    expected.push(&|text| text.chars().rev().collect());
    expected.push(&|text| text.replace('e', "¨é"));
    expected.push(&|text| text.replace('e', ""));
    expected.push(&|text| text.to_string());
    expected.push(&translate);
    expected.push(&padded);
    expected.push(&|text| text.chars().take(10).collect());
    expected.push(&|text| format!("{text}, {text}"));
    let (columns, error) = bench.run(&nodes);
    assert_eq!(error, 0, "{:?}", ErrorCode::from_word(error));
    for (i, expected) in expected.iter().enumerate() {
        let wanted = column.iter().map(|text| Out::from(text.map(expected).as_deref())).collect();
        assert_same(&format!("output {i}"), &columns[i], wanted);
    }

    // With numbers, and with NULLs on either side.
    let mut node = |function, of: &[NodeId]| bench.graph.text(function, of).expect("texts");
    let twice = node(Reverse, &[c]);
    let nodes = [
        node(Repeat, &[c, n]),
        node(PadEnd, &[c, n, comma]),
        node(OfInteger { scale: 0 }, &[n]),
        node(Concatenate { strict: false }, &[c, comma, twice]),
        node(Join, &[comma, c, e, c, twice]),
        node(Join, &[c, e, e]),
        node(Reverse, &[twice]),
    ];
    let (columns, error) = bench.run(&nodes);
    assert_eq!(error, 0, "{:?}", ErrorCode::from_word(error));
    for (row, (text, n)) in column.iter().zip(&times).enumerate() {
        let both = text.zip(*n);
        let reversed = text.map(|text| text.chars().rev().collect::<String>());
        let rest = |text: &str, n: usize| text.chars().chain(", ".chars().cycle()).take(n).collect::<String>();
        let own = [text.map(str::to_string), Some("e".into()), text.map(str::to_string), reversed.clone()];
        let wanted = [
            both.map(|(text, n)| text.repeat(n.max(0) as usize)),
            both.map(|(text, n)| rest(text, n.max(0) as usize)),
            n.map(|n| n.to_string()),
            Some(format!("{}, {}", text.unwrap_or(""), reversed.as_deref().unwrap_or(""))),
            Some(own.into_iter().flatten().collect::<Vec<_>>().join(", ")),
            text.map(|text| format!("e{text}e")),
            text.map(str::to_string),
        ];
        for (i, wanted) in wanted.into_iter().enumerate() {
            assert_eq!(columns[i][row], Out::from(wanted.as_deref()), "output {i} of {text:?}, {n:?}");
        }
    }
}

#[test]
fn letters_with_cases_that_no_table_holds_raise_the_flag() {
    for text in BEYOND {
        let mut bench = Bench::new();
        let c = bench.texts([Some(text.as_bytes()), None]);
        let (upper, lower) = (bench.constant(&text::case_table(true)), bench.constant(&text::case_table(false)));
        let nodes = [
            bench.graph.text(TextFunction::Upper, &[c, upper]).expect("texts"),
            bench.graph.text(TextFunction::Lower, &[c, lower]).expect("texts"),
        ];
        let codes: Vec<_> = nodes.iter().map(|node| ErrorCode::from_word(bench.run(&[*node]).1)).collect();
        assert!(codes.iter().flatten().any(|(code, _)| *code == ErrorCode::Argument), "{text}: {codes:?}");
    }
}

#[test]
fn every_letter_of_two_bytes_has_its_other_case_or_none() {
    let letters: Vec<String> = (0x80..0x800).filter_map(char::from_u32).map(String::from).collect();
    for upper in [true, false] {
        let other = |text: &str| if upper { text.to_uppercase() } else { text.to_lowercase() };
        // Letters that take more room, and the sigma, are refused.
        let known: Vec<&String> = letters.iter().filter(|c| other(c).len() <= 2 && (upper || *c != "Σ")).collect();
        assert!(known.len() > 1800, "{} letters", known.len());
        let mut bench = Bench::new();
        let c = bench.texts(known.iter().map(|text| Some(text.as_bytes())));
        let table = bench.constant(&text::case_table(upper));
        let function = if upper { TextFunction::Upper } else { TextFunction::Lower };
        let node = bench.graph.text(function, &[c, table]).expect("texts");
        assert_same("letters", &bench.values(node), known.iter().map(|text| Out::from(other(text).as_str())).collect());
    }
}

#[test]
fn parts_between_delimiters_numbers_and_characters() {
    let texts = [
        "a,b,,c",
        "",
        ",",
        "no delimiter",
        "aaa",
        "日本,語",
        "x,aaaa,y",
        "-12",
        " +7 ",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
        "1.5",
        "-",
        "007",
        "1 2",
    ];
    let column: Vec<Option<&str>> = texts.iter().copied().map(Some).chain([None]).collect();
    for (delimiter, wanted) in
        [(",", 1_i64), (",", 2), (",", -1), (",", -3), ("aa", 2), ("aa", -1), ("aa", -2), ("日本", 2), (",", 9)]
    {
        let mut bench = Bench::new();
        let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
        let own = bench.constant(delimiter.as_bytes());
        let at = bench.graph.integer(wanted.into(), Repr::I64);
        let node = bench.graph.text(TextFunction::SplitPart, &[c, own, at]).expect("a text");
        let part = |text: &str| {
            let at = wanted.unsigned_abs() as usize - 1;
            let part = if wanted > 0 { text.split(delimiter).nth(at) } else { text.rsplit(delimiter).nth(at) };
            part.unwrap_or("").to_string()
        };
        let expected = column.iter().map(|text| Out::from(text.map(part).as_deref())).collect();
        assert_same(&format!("part {wanted} at {delimiter}"), &bench.values(node), expected);
    }
    let mut bench = Bench::new();
    let c = bench.texts(column.iter().map(|text| text.map(str::as_bytes)));
    let number = bench.graph.text(TextFunction::ToInteger(Overflow::Null), &[c]).expect("a text");
    let code = bench.graph.text(TextFunction::Code, &[c]).expect("a text");
    let (columns, error) = bench.run(&[number, code]);
    assert_eq!(error, 0);
    let read = |text: &&str| text.trim().parse::<i64>().ok().map(|n| Out::Int(n.into())).unwrap_or(Out::Null);
    let first = |text: &&str| Out::Int(text.chars().next().map_or(0, |c| c as i128));
    assert_same("numbers", &columns[0], column.iter().map(|text| text.as_ref().map_or(Out::Null, read)).collect());
    assert_same("characters", &columns[1], column.iter().map(|text| text.as_ref().map_or(Out::Null, first)).collect());

    let numbers = [0, 65, 0x7f, 0x80, 0x7ff, 0x800, 0xffff, 0x1_0000, 0x10_ffff, i64::MIN, i64::MAX, -1, 0xd800];
    for (i, number) in numbers.into_iter().enumerate() {
        let mut bench = Bench::new();
        let n = bench.numbers(vec![Some(number), None]);
        let (of_code, said) = (
            bench.graph.text(TextFunction::OfCode, &[n]).expect("a number"),
            bench.graph.text(TextFunction::OfInteger { scale: 0 }, &[n]).expect("a number"),
        );
        assert_eq!(bench.values(said), [number.to_string().as_str().into(), Out::Null]);
        let scaled = bench.graph.text(TextFunction::OfInteger { scale: 3 }, &[n]).expect("a number");
        let whole = i128::from(number).abs();
        let point = format!("{}{}.{:03}", if number < 0 { "-" } else { "" }, whole / 1000, whole % 1000);
        assert_eq!(bench.values(scaled), [point.as_str().into(), Out::Null]);
        let (columns, error) = bench.run(&[of_code]);
        match u32::try_from(number).ok().and_then(char::from_u32) {
            Some(c) => assert_eq!((&columns[0], error), (&vec![c.to_string().as_str().into(), Out::Null], 0), "{i}"),
            None => assert_eq!(ErrorCode::from_word(error).expect("refused").0, ErrorCode::Argument, "{number}"),
        }
    }
}

#[test]
fn too_little_room_raises_the_flag_and_more_of_it_does() {
    let mut bench = Bench::new();
    let c = bench.texts((0..100).map(|row| Some(if row % 2 == 0 { &b"abc"[..] } else { b"" })));
    let n = bench.numbers(vec![Some(1000); 100]);
    let node = bench.graph.text(TextFunction::Repeat, &[c, n]).expect("a text");
    bench.times = 1;
    let (_, error) = bench.run(&[node]);
    assert_eq!(ErrorCode::from_word(error).expect("there is too little").0, ErrorCode::ArenaFull);
    bench.times = 256;
    let expected =
        (0..100).map(|row| Out::from(if row % 2 == 0 { "abc".repeat(1000) } else { String::new() }.as_str()));
    assert_same("room enough", &bench.values(node), expected.collect());
}

#[test]
fn texts_are_keys_of_joins() {
    let million = "x".repeat(1 << 20);
    let another = "x".repeat((1 << 20) - 1) + "y";
    let mut some = some_texts();
    // Alike in length and beginning, up to twelve bytes and beyond.
    some.extend((0..40).map(|i| format!("the same{:0width$}", i % 20, width = if i < 20 { 4 } else { 30 })));
    let mut random = Random(12);
    let mut side = |rows: usize| -> Vec<Option<&str>> {
        let mut texts: Vec<Option<&str>> = (0..rows)
            .map(|_| (random.below(9) != 0).then(|| some[random.below(some.len() as u64) as usize].as_str()))
            .collect();
        texts.extend([Some(&*million), None, Some("only here")]);
        texts
    };
    let (built, probing) = (side(90), side(150));
    let probing = [probing, vec![Some(&*another)]].concat();
    for nulls_equal in [false, true] {
        // The build side: a table of texts, and which row leads.
        let mut bench = Bench::new();
        let key = bench.texts(built.iter().map(|text| text.map(str::as_bytes)));
        let (spec, input) = bench.column(&bench.columns[0]);
        let table = TableSpec { keys: vec![spec.ty], kind: TableKind::Hash, lists: false, nulls_equal };
        let pipeline = |columns: Vec<ColumnSpec>, tables: Vec<TableSpec>, graph: &Graph, sink: SinkSpec| PipelineSpec {
            extents: Extents::One,
            columns,
            literals: vec![],
            lookups: vec![],
            tables,
            expanded: false,
            graph: graph.clone(),
            filters: vec![],
            sink,
        };
        let sink = SinkSpec::Table { table: table.clone(), keys: vec![key] };
        let build = bench.rig.pipeline(&pipeline(vec![spec], vec![], &bench.graph, sink));
        assert!(build.compiled().pipeline.instructions <= 400, "{}", build.compiled().pipeline.instructions);
        let rows = ExtentRows::Known(built.len() as u64);
        let extent = ExtentInput { rows, columns: vec![Some(input.clone())] };
        let layout = build.table_layout(built.len() as u64).expect("few");
        let buffer = DeviceBuffer::new(layout.bytes, &bench.rig.stream, &bench.rig.pool).expect("room");
        let from = Input { extents: std::slice::from_ref(&extent), ..Input::default() };
        build.build_table(from, buffer.as_view(), &layout, None, &bench.rig.stream).expect("fits");

        let mut other = Bench::new();
        let key = other.texts(probing.iter().map(|text| text.map(str::as_bytes)));
        other.rig = bench.rig;
        let (spec, probed) = other.column(&other.columns[0]);
        let matches = other.graph.probe(0, &table, &[key]).expect("a key");
        let row = other.graph.match_start(matches).expect("a row");
        let sink = SinkSpec::Materialise { outputs: vec![row] };
        let probe = other.rig.pipeline(&pipeline(vec![spec], vec![table], &other.graph, sink));
        let rows = ExtentRows::Known(probing.len() as u64);
        let extent = ExtentInput { rows, columns: vec![Some(probed)] };
        let extents = std::slice::from_ref(&extent);
        let tables = [TableInput { table: buffer.as_view().clone(), layout, lists: None }];
        let (views, texts) = (probe.output_layout(extents), [input.values]);
        let output = DeviceBuffer::new(views.bytes, &other.rig.stream, &other.rig.pool).expect("room");
        let from = Input { extents, tables: &tables, texts: &texts, ..Input::default() };
        probe.materialise(from, output.as_view(), &views, &other.rig.stream).expect("fits");
        other.rig.assert_clean();
        let column = &views.columns[0];
        let values = other.rig.download(&output.view(column.values.clone()).expect("inside"));
        let valid = other.rig.download(&output.view(column.validity.clone().expect("nullable")).expect("inside"));
        for (row, text) in probing.iter().enumerate() {
            let leader = u32::from_le_bytes(values[row * 4..][..4].try_into().unwrap()) as usize;
            let leader = (valid[row / 8] >> (row % 8) & 1 == 1).then(|| built[leader]);
            let there = built.contains(text) && (nulls_equal || text.is_some());
            assert_eq!(leader, there.then_some(*text), "row {row}");
        }
    }
}
