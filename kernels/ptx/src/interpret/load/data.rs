//! Sizes and initial bytes of module variables.

use super::{FUNCTION_BASE, FUNCTION_STRIDE, Loader, Symbol, error};
use crate::ast::{self, Init, Linkage, Type};
use crate::interpret::image::{LoadError, Reference};

/// Bytes of a variable; its alignment must be a power of two.
pub(super) fn size(variable: &ast::Variable) -> Result<u64, LoadError> {
    let align = variable.alignment();
    if !align.is_power_of_two() || align > 1 << 16 {
        return error(variable.span.line, format!("`{}` cannot be aligned to {align} bytes", variable.name));
    }
    match variable.size() {
        Some(size) => Ok(size),
        None => error(variable.span.line, format!("`{}` takes more than 2^64 bytes", variable.name)),
    }
}

impl Loader {
    /// Fills the initial bytes of the globals and returns the positions that hold addresses of globals.
    pub(super) fn initialisers(&mut self, module: &ast::Module) -> Result<Vec<Reference>, LoadError> {
        let mut references = Vec::new();
        for variable in module.variables() {
            let Some(&Symbol::Global(global)) = self.symbols.get(&variable.name) else { continue };
            let info = &self.globals[global as usize];
            if info.init.len() as u64 == info.size && variable.linkage == Linkage::Extern {
                continue;
            }
            let bytes = usize::try_from(info.size).ok().filter(|&bytes| bytes <= 1 << 34);
            let Some(bytes) = bytes else {
                return error(variable.span.line, format!("`{}` takes {} bytes", variable.name, info.size));
            };
            let mut writer =
                Writer { loader: self, variable, global, bytes: vec![0; bytes], references: &mut references };
            if let Some(init) = &variable.init {
                writer.array(init, &variable.dims, 0)?;
            }
            let bytes = writer.bytes;
            self.globals[global as usize].init = bytes;
        }
        Ok(references)
    }
}

struct Writer<'a> {
    loader: &'a Loader,
    variable: &'a ast::Variable,
    global: u32,
    bytes: Vec<u8>,
    references: &'a mut Vec<Reference>,
}

impl Writer<'_> {
    fn array(&mut self, init: &Init, dims: &[u64], at: u64) -> Result<(), LoadError> {
        match (init, dims) {
            (Init::List(list), [_, inner @ ..]) => {
                // A flat list initializes several dimensions in order.
                let nested = list.iter().any(|item| matches!(item, Init::List(_)));
                let step = if nested || inner.is_empty() {
                    inner.iter().product::<u64>() * self.variable.element_bytes()
                } else {
                    self.variable.element_bytes()
                };
                for (index, item) in list.iter().enumerate() {
                    let inner = if nested { inner } else { &[] };
                    self.array(item, inner, at + index as u64 * step)?;
                }
                Ok(())
            }
            (Init::List(list), []) => {
                let step = u64::from(self.variable.ty.bytes());
                for (index, item) in list.iter().enumerate() {
                    self.scalar(item, at + index as u64 * step)?;
                }
                Ok(())
            }
            (item, _) => self.scalar(item, at),
        }
    }

    fn scalar(&mut self, init: &Init, at: u64) -> Result<(), LoadError> {
        let (ty, line) = (self.variable.ty, self.variable.span.line);
        let bits: u64 = match *init {
            Init::Integer(value) if ty == Type::F32 => u64::from((value as f32).to_bits()),
            Init::Integer(value) if ty == Type::F64 => (value as f64).to_bits(),
            Init::Integer(value) => value as u64,
            Init::F32(bits) if ty == Type::F64 => f64::from(f32::from_bits(bits)).to_bits(),
            Init::F32(bits) => u64::from(bits),
            Init::F64(bits) if ty == Type::F32 => u64::from((f64::from_bits(bits) as f32).to_bits()),
            Init::F64(bits) => bits,
            Init::Symbol { ref name, offset, .. } => self.symbol(name, offset, at, u64::MAX)?,
            Init::Mask { mask, ref name, offset, .. } => self.symbol(name, offset, at, mask)?,
            Init::List(_) => return error(line, format!("`{}` has too many nested lists", self.variable.name)),
        };
        let bytes = ty.bytes() as usize;
        let Some(place) = self.bytes.get_mut(at as usize..at as usize + bytes) else {
            return error(line, format!("`{}` has more initial values than elements", self.variable.name));
        };
        let value = bits.to_le_bytes();
        for (index, byte) in place.iter_mut().enumerate() {
            *byte = value.get(index).copied().unwrap_or(0);
        }
        Ok(())
    }

    fn symbol(&mut self, name: &str, offset: i64, at: u64, mask: u64) -> Result<u64, LoadError> {
        let line = self.variable.span.line;
        match self.loader.symbols.get(name) {
            Some(&Symbol::Global(target)) => {
                self.references.push(Reference {
                    global: self.global,
                    at,
                    bytes: self.variable.ty.bytes(),
                    target,
                    offset,
                    mask,
                });
                Ok(0)
            }
            Some(&Symbol::Function(function)) => {
                let address = FUNCTION_BASE + u64::from(function) * FUNCTION_STRIDE;
                Ok((address.wrapping_add_signed(offset) & mask) >> mask.trailing_zeros().min(63))
            }
            _ => error(line, format!("`{}` is initialised with `{name}`, which has no address", self.variable.name)),
        }
    }
}
