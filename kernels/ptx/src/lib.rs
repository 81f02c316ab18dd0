//! PTX as data: parse, print, build, check and interpret it.
