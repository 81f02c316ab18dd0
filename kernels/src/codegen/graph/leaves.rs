//! Constructors of leaves: columns, literals, constants, lookup tables, join tables, row numbers.
//!
//! NULL     a lookup is NULL for a NULL code, a list of matches if it is empty; row numbers are never NULL.

use super::*;
use crate::codegen::ir::TableSpec;

impl Graph {
    /// Column `index` of the pipeline's input.
    pub fn column(&mut self, index: u32, ty: Ty) -> NodeId {
        self.push(Node::Column { index }, ty)
    }

    /// The literal in parameter `slot`.
    pub fn literal(&mut self, slot: u32, ty: Ty) -> NodeId {
        self.push(Node::Literal { slot }, ty)
    }

    /// An integer that belongs to the operator, not to the query. It is part of the kernel's text.
    pub fn integer(&mut self, value: i128, repr: Repr) -> NodeId {
        self.push(Node::Constant { bits: value }, Ty::new(repr).within(value, value))
    }

    /// A float that belongs to the operator, not to the query. It is part of the kernel's text.
    pub fn float(&mut self, value: f64, repr: Repr) -> NodeId {
        let bits = match repr {
            Repr::F32 => i128::from((value as f32).to_bits()),
            _ => i128::from(value.to_bits()),
        };
        self.push(Node::Constant { bits }, Ty::new(repr))
    }

    pub fn boolean(&mut self, value: bool) -> NodeId {
        self.push(Node::Constant { bits: i128::from(value) }, Ty::new(Repr::Bool))
    }

    /// NULL of a type.
    pub fn null(&mut self, repr: Repr) -> NodeId {
        self.push(Node::Null, Ty::new(repr).nullable(true))
    }

    /// Value of a scalar function for a dictionary code. `ty` says whether the table itself contains NULLs.
    ///
    /// # Errors
    /// If `code` is not `U32`.
    pub fn lookup(&mut self, code: NodeId, table: u32, ty: Ty) -> Result<NodeId, GraphError> {
        self.expect("a lookup table", &[code], |repr| repr == Repr::U32)?;
        let nullable = ty.nullable || self.ty(code).nullable;
        Ok(self.push(Node::Lookup { code, table }, ty.nullable(nullable)))
    }

    /// First of some places of a lookup table at which it has `sought` (`U32`); NULL if there is none. `item` is the
    /// type of the table's values.
    ///
    /// # Errors
    /// If a place is not `U32`, or `sought` does not have the table's representation.
    pub fn find(&mut self, sought: NodeId, (places, item): (Places, Ty), nulls: bool) -> Result<NodeId, GraphError> {
        self.expect_search(sought, places, item)?;
        Ok(self.push(Node::Find { sought, places, nulls }, Ty::new(Repr::U32).nullable(true)))
    }

    /// Number of these places at which the table has `sought` (`U32`, never NULL).
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn count_of(
        &mut self,
        sought: NodeId,
        (places, item): (Places, Ty),
        nulls: bool,
    ) -> Result<NodeId, GraphError> {
        self.expect_search(sought, places, item)?;
        Ok(self.push(Node::CountOf { sought, places, nulls }, Ty::new(Repr::U32)))
    }

    fn expect_search(&self, sought: NodeId, places: Places, item: Ty) -> Result<(), GraphError> {
        self.expect("a place in a lookup table", &[places.from, places.to], |repr| repr == Repr::U32)?;
        self.expect("a search in a lookup table", &[sought], |repr| repr == item.repr)
    }

    /// Whether each value (or `any` value) in a range of a lookup table occurs in a second range, of that or another
    /// table.
    ///
    /// # Errors
    /// If a place is not `U32`, or the tables have different representations.
    pub fn among(
        &mut self,
        (of, item): (Places, Ty),
        (inside, other): (Places, Ty),
        any: bool,
    ) -> Result<NodeId, GraphError> {
        let places = [of.from, of.to, inside.from, inside.to];
        self.expect("a place in a lookup table", &places, |repr| repr == Repr::U32)?;
        if item.repr != other.repr {
            let operands = vec![item.repr, other.repr];
            return Err(GraphError::Operands { operator: "a search in a lookup table".into(), operands });
        }
        Ok(self.push(Node::Among { of, inside, any }, Ty::new(Repr::Bool)))
    }

    // Joins

    /// Rows of join table `table` (described by `spec`) with these keys: a list of matches, NULL if it is empty.
    ///
    /// # Errors
    /// If the number or the representations of the keys do not match the table.
    pub fn probe(&mut self, table: u32, spec: &TableSpec, keys: &[NodeId]) -> Result<NodeId, GraphError> {
        let given: Vec<Repr> = keys.iter().map(|key| self.ty(*key).repr).collect();
        let wanted: Vec<Repr> = spec.keys.iter().map(|key| key.repr).collect();
        if given != wanted {
            return Err(GraphError::Operands { operator: format!("a join table of {wanted:?}"), operands: given });
        }
        Ok(self.push(Node::Probe { table, keys: keys.to_vec() }, Ty::new(Repr::U64).nullable(true)))
    }

    /// Number of rows of a list of matches (`U32`); NULL if it is empty.
    ///
    /// # Errors
    /// If `matches` is not `U64`.
    pub fn match_count(&mut self, matches: NodeId) -> Result<NodeId, GraphError> {
        let low = self.integer(u32::MAX.into(), Repr::U64);
        let count = self.bitwise(Bitwise::And, matches, low)?;
        self.convert(count, Repr::U32, Overflow::Wrap)
    }

    /// Start of a list of matches in the table's list of rows (`U32`); NULL if it is empty.
    ///
    /// # Errors
    /// If `matches` is not `U64`.
    pub fn match_start(&mut self, matches: NodeId) -> Result<NodeId, GraphError> {
        let half = self.integer(32, Repr::U64);
        let start = self.bitwise(Bitwise::ShiftRight, matches, half)?;
        let start = self.assume(start, Range { low: 0, high: u32::MAX.into() });
        self.convert(start, Repr::U32, Overflow::Wrap)
    }

    /// Index of the current row among the rows of its source row.
    pub fn ordinal(&mut self) -> NodeId {
        self.push(Node::Ordinal, Ty::new(Repr::U32))
    }

    /// Index of the current row in its extent; in an expanded pipeline, that of its source row.
    pub fn source_row(&mut self) -> NodeId {
        self.push(Node::SourceRow, Ty::new(Repr::U32))
    }

    /// `of` as a non-nullable value: the caller's filters remove rows with a NULL before this node.
    pub fn present(&mut self, of: NodeId) -> NodeId {
        let ty = self.ty(of);
        match ty.nullable {
            true => self.push(Node::Present { of }, ty.nullable(false)),
            false => of,
        }
    }

    /// NULL of any type.
    pub fn null_of(&mut self, ty: Ty) -> NodeId {
        self.push(Node::Null, ty.nullable(true))
    }
}
