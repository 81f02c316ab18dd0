//! Names of types in tables.

use millpond::datafusion::arrow::datatypes::{DataType, TimeUnit};

/// The SQL name of a type, if it has one.
pub fn type_name(of: &DataType) -> String {
    match of {
        DataType::Boolean => "boolean".to_string(),
        DataType::Int8 => "tinyint".to_string(),
        DataType::Int16 => "smallint".to_string(),
        DataType::Int32 => "int".to_string(),
        DataType::Int64 => "bigint".to_string(),
        DataType::UInt8 => "tinyint unsigned".to_string(),
        DataType::UInt16 => "smallint unsigned".to_string(),
        DataType::UInt32 => "int unsigned".to_string(),
        DataType::UInt64 => "bigint unsigned".to_string(),
        DataType::Float16 => "float16".to_string(),
        DataType::Float32 => "real".to_string(),
        DataType::Float64 => "double".to_string(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "varchar".to_string(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytea".to_string(),
        DataType::Date32 | DataType::Date64 => "date".to_string(),
        DataType::Time32(_) | DataType::Time64(_) => "time".to_string(),
        DataType::Timestamp(unit, zone) => {
            let digits = match unit {
                TimeUnit::Second => 0,
                TimeUnit::Millisecond => 3,
                TimeUnit::Microsecond => 6,
                TimeUnit::Nanosecond => 9,
            };
            let zone = if zone.is_some() { " with time zone" } else { "" };
            format!("timestamp({digits}){zone}")
        }
        DataType::Interval(_) | DataType::Duration(_) => "interval".to_string(),
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => format!("decimal({precision}, {scale})"),
        DataType::Dictionary(_, of) => type_name(of),
        DataType::List(of) | DataType::LargeList(of) | DataType::ListView(of) | DataType::LargeListView(of) => {
            format!("{}[]", type_name(of.data_type()))
        }
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|field| format!("{} {}", field.name(), type_name(field.data_type())));
            format!("struct({})", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string().to_lowercase(),
    }
}
