//! A GPU SQL engine that extends Apache DataFusion's physical plan.
