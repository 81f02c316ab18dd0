//! A pipeline over texts and numbers whose nodes the test creates: inputs, outputs.

use millpond_kernels::Images;
use millpond_kernels::codegen::ir::*;
use millpond_kernels::pipeline::{ColumnInput, ExtentInput, ExtentRows, Input, LookupInput};
use millpond_kernels::text::{self, Working};
use millpond_memory::{DeviceBuffer, DeviceView};

use crate::pipeline_rig::Rig;

pub(crate) type Texts = Vec<Option<Vec<u8>>>;

/// A column of the test: texts or numbers.
pub(crate) enum Column {
    Texts(Texts),
    Numbers(Vec<Option<i64>>),
}

/// An output value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Out {
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

/// Offsets and bytes in device format: a NULL row has bytes, too, which must not be read.
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

/// A pipeline over texts, with nodes created by the caller.
pub(crate) struct Bench {
    pub rig: Rig,
    images: Images,
    pub columns: Vec<Column>,
    tables: Vec<Texts>,
    pub graph: Graph,
    pub filters: Vec<NodeId>,
    /// True to pass the outputs, as views, through a second pipeline first.
    pub twice: bool,
    /// Factor for the size of the arena.
    pub times: u64,
}

impl Bench {
    pub fn new() -> Bench {
        let rig = Rig::new();
        let images = Images::new(&rig.device);
        let graph = Graph::new();
        Bench { rig, images, columns: vec![], tables: vec![], graph, filters: vec![], twice: false, times: 4 }
    }

    pub fn texts<'t>(&mut self, texts: impl IntoIterator<Item = Option<&'t [u8]>>) -> NodeId {
        let texts: Texts = texts.into_iter().map(|text| text.map(<[u8]>::to_vec)).collect();
        let ty = Ty::new(Repr::Text).nullable(texts.contains(&None));
        self.columns.push(Column::Texts(texts));
        self.graph.column(self.columns.len() as u32 - 1, ty)
    }

    pub fn numbers(&mut self, numbers: Vec<Option<i64>>) -> NodeId {
        let ty = Ty::new(Repr::I64).nullable(numbers.contains(&None));
        self.columns.push(Column::Numbers(numbers));
        self.graph.column(self.columns.len() as u32 - 1, ty)
    }

    /// A text that is constant over all rows: entry 0 of a table.
    pub fn constant(&mut self, text: &[u8]) -> NodeId {
        self.tables.push(vec![Some(text.to_vec())]);
        let code = self.graph.integer(0, Repr::U32);
        self.graph.lookup(code, self.tables.len() as u32 - 1, Ty::new(Repr::Text)).expect("a code")
    }

    /// Constant texts as entries of one table, after `unused` entries without a node.
    pub fn constants(&mut self, unused: usize, texts: &[&[u8]]) -> Vec<NodeId> {
        let entries = vec![Some(b"unused".to_vec()); unused].into_iter();
        self.tables.push(entries.chain(texts.iter().map(|text| Some(text.to_vec()))).collect());
        let table = self.tables.len() as u32 - 1;
        (unused..unused + texts.len())
            .map(|code| {
                let code = self.graph.integer(code as i128, Repr::U32);
                self.graph.lookup(code, table, Ty::new(Repr::Text)).expect("a code")
            })
            .collect()
    }

    pub fn rows(&self) -> usize {
        match &self.columns[0] {
            Column::Texts(texts) => texts.len(),
            Column::Numbers(numbers) => numbers.len(),
        }
    }

    fn upload(&self, bytes: &[u8]) -> DeviceView {
        // An empty upload needs one byte.
        let bytes = if bytes.is_empty() { &[0] } else { bytes };
        self.rig.upload(bytes, &self.rig.stream).as_view().clone()
    }

    pub fn column(&self, column: &Column) -> (ColumnSpec, ColumnInput) {
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

    /// Outputs of the rows that pass, and the error word.
    pub fn run(&self, outputs: &[NodeId]) -> (Vec<Vec<Out>>, u64) {
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
        // Buffers that the outputs' views point into.
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

    pub fn read(
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
    pub fn values(&self, output: NodeId) -> Vec<Out> {
        let (mut columns, error) = self.run(&[output]);
        assert_eq!(error, 0, "{:?}", ErrorCode::from_word(error));
        columns.remove(0)
    }
}

/// Texts of edge lengths, in ASCII and with characters of two to four bytes.
pub(crate) fn some_texts() -> Vec<String> {
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

pub(crate) fn as_bytes(texts: &[String]) -> impl Iterator<Item = Option<&[u8]>> {
    texts.iter().map(|text| Some(text.as_bytes()))
}

/// Every third text is NULL.
pub(crate) fn with_nulls(texts: &[String]) -> Vec<Option<&str>> {
    texts.iter().enumerate().map(|(i, text)| (i % 3 != 1).then_some(text.as_str())).collect()
}

pub(crate) fn assert_same(what: &str, got: &[Out], expected: Vec<Out>) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(got, expected, "{what}, row {row}");
    }
}
