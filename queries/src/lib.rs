//! Query suites of Millpond: SQL text, parameters, answers.
