//! Numeric literals with their exact value.
//!
//! DataFusion plans a literal with a fraction or an exponent as a double, before the type of the other side of a comparison is known. Such
//! literals are planned as parameters of type double, and become doubles that carry their text until comparisons are resolved.

use std::{ops::ControlFlow, sync::Arc};

use arrow_schema::{DataType, Field, FieldRef};
use datafusion_common::{
    Result, ScalarValue,
    metadata::FieldMetadata,
    tree_node::{Transformed, TreeNode},
};
use datafusion_expr::{Cast, Expr, TryCast};
use datafusion_sql::sqlparser::ast;

use super::{number::Number, place};
use crate::Error;

/// Key of the text in the metadata of a literal.
const TEXT: &str = "forebay.text";

/// Literals of an expression that are planned as parameters.
#[derive(Debug, Default)]
pub(crate) struct Literals {
    /// Text of each literal. Parameter `$1` is the first one.
    texts: Vec<String>,
    /// Number of intervals around the visited part. Their numbers are parts of the syntax.
    intervals: usize,
}

impl Literals {
    /// Replaces the literals of `parsed` that DataFusion would round by parameters.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `parsed` has parameters already.
    pub(crate) fn of(parsed: &mut ast::Expr) -> Result<Self, Error> {
        let mut literals = Self::default();
        match ast::VisitMut::visit(parsed, &mut literals) {
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok(literals),
        }
    }

    /// Types of the parameters.
    pub(crate) fn types(&self) -> Vec<Option<FieldRef>> {
        let double = Arc::new(Field::new("literal", DataType::Float64, false));
        vec![Some(double); self.texts.len()]
    }

    /// Replaces the parameters of a planned expression by literals that carry their text. A literal includes its sign.
    pub(crate) fn restored(&self, planned: Expr) -> Result<Expr> {
        let restored = planned.transform_up(|part| {
            Ok(Transformed::yes(match part {
                Expr::Placeholder(parameter) => {
                    let number =
                        parameter.id.strip_prefix('$').and_then(|number| number.parse::<usize>().ok());
                    match number.and_then(|number| self.texts.get(number.checked_sub(1)?)) {
                        Some(text) => literal(text),
                        None => Expr::Placeholder(parameter),
                    }
                }
                Expr::Negative(inner) => match text(&inner) {
                    Some(text) => literal(&opposite(text)),
                    None => Expr::Negative(inner),
                },
                part => part,
            }))
        });
        restored.map(|restored| restored.data)
    }

    /// A parameter for a number that is neither a 64-bit integer nor without a double.
    fn parameter(&mut self, text: String) -> Option<ast::Expr> {
        let is_integer = text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
        if is_integer || text.parse::<f64>().is_err() || Number::parse(&text).is_none() {
            return None;
        }
        self.texts.push(text);
        Some(ast::Expr::Value(ast::Value::Placeholder(format!("${}", self.texts.len())).into()))
    }
}

impl ast::VisitorMut for Literals {
    type Break = Error;

    fn pre_visit_expr(&mut self, part: &mut ast::Expr) -> ControlFlow<Error> {
        match part {
            ast::Expr::Interval(_) => self.intervals += 1,
            ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Placeholder(name), .. }) => {
                return ControlFlow::Break(Error::invalid(format!(
                    "'{name}' is not an expression of one row"
                )));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, part: &mut ast::Expr) -> ControlFlow<Error> {
        let number = |part: &ast::Expr| match part {
            ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Number(text, _), .. }) => {
                Some(text.clone())
            }
            _ => None,
        };
        let text = match part {
            ast::Expr::Interval(_) => {
                self.intervals -= 1;
                None
            }
            _ if self.intervals > 0 => None,
            // The smallest integer is written with a sign.
            ast::Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr } => {
                number(expr).map(|text| format!("-{text}"))
            }
            _ => number(part),
        };
        if let Some(parameter) = text.and_then(|text| self.parameter(text)) {
            *part = parameter;
        }
        ControlFlow::Continue(())
    }
}

/// The exact value of a numeric literal, with or without a sign; `None` for other parts.
pub(super) fn exact(part: &Expr) -> Option<Number> {
    match part {
        Expr::Literal(ScalarValue::Int64(Some(integer)), _) => Number::parse(&integer.to_string()),
        Expr::Literal(ScalarValue::UInt64(Some(integer)), _) => Number::parse(&integer.to_string()),
        Expr::Negative(inner) if matches!(**inner, Expr::Literal(..)) => exact(inner).map(Number::negated),
        literal => text(literal).and_then(Number::parse),
    }
}

/// Replaces literals with a text by plain literals. Those that are converted to a decimal are converted exactly.
pub(crate) fn resolved(expression: Expr) -> Result<Expr> {
    let resolved = expression.transform_down(|part| {
        let decimal = match &part {
            Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => text(expr)
                .and_then(Number::parse)
                .and_then(|number| place::decimal(&number, field.data_type())),
            _ => None,
        };
        Ok(Transformed::yes(match (decimal, part) {
            (Some(decimal), _) => Expr::Literal(decimal, None),
            (None, Expr::Literal(value, _)) => Expr::Literal(value, None),
            (None, part) => part,
        }))
    });
    resolved.map(|resolved| resolved.data)
}

fn literal(text: &str) -> Expr {
    let double = text.parse().expect("a parameter has a text with a double");
    let metadata = FieldMetadata::from(
        [(TEXT.to_owned(), text.to_owned())].into_iter().collect::<std::collections::BTreeMap<_, _>>(),
    );
    Expr::Literal(ScalarValue::Float64(Some(double)), Some(metadata))
}

fn text(part: &Expr) -> Option<&str> {
    let Expr::Literal(ScalarValue::Float64(_), Some(metadata)) = part else { return None };
    metadata.inner().get(TEXT).map(String::as_str)
}

fn opposite(text: &str) -> String {
    text.strip_prefix('-').map_or_else(|| format!("-{text}"), str::to_owned)
}
