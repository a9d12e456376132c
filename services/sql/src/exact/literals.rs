//! Numeric literals with their exact values, and the names of sets of values.
//!
//! DataFusion plans a literal with a fraction or an exponent as a double, before the type of the other side of a comparison is known. Such
//! literals are planned as parameters of type double, and become doubles that carry their text until comparisons are resolved.
//!
//! `NOT x` and `-x` are planned as `x = $1` and `$1 - x`. DataFusion's planner asks for the type of the operand of a prefix operator,
//! and some comparisons have a type only after they are resolved, such as those of times with different units.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use arrow_schema::{DataType, Field, FieldRef};
use datafusion_common::{
    Result, ScalarValue,
    metadata::FieldMetadata,
    tree_node::{Transformed, TreeNode},
};
use datafusion_expr::{BinaryExpr, Case, Cast, Expr, TryCast, expr::InList};
use datafusion_sql::sqlparser::ast;

use super::{number::Number, place};
use crate::{Error, ValueSet, literal_text::TEXT, values::member::member_of};

/// Metadata key of the text of a `NULLIF` call. The call becomes a `CASE`, and the null literal of this `CASE` carries the text.
const NULLIF: &str = "forebay.nullif";

/// A set of values with its name.
pub(crate) type NamedSet = (String, Arc<ValueSet>);

/// Meaning of a parameter.
#[derive(Debug)]
enum Parameter<'a> {
    /// Text of a number.
    Number(String),
    Set(&'a NamedSet),
    /// Stands for a prefix operator, next to its operand.
    Prefix(ast::UnaryOperator),
}

/// Literals and sets of values of an expression that are planned as parameters.
#[derive(Debug, Default)]
pub(crate) struct Literals<'a> {
    /// Parameter `$1` is the first one.
    parameters: Vec<Parameter<'a>>,
    /// Sets of values that the expression may refer to, by name.
    sets: &'a [NamedSet],
    /// Number of `INTERVAL` expressions around the visited part. Numbers in them are not literals, but a part of the syntax.
    intervals: usize,
}

impl<'a> Literals<'a> {
    /// Replaces parts of `parsed` by parameters: the literals that DataFusion would round, and the names of `sets` in `IN (:name)`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `parsed` has other parameters.
    pub(crate) fn of(parsed: &mut ast::Expr, sets: &'a [NamedSet]) -> Result<Self, Error> {
        let mut literals = Self { sets, ..Self::default() };
        match ast::VisitMut::visit(parsed, &mut literals) {
            ControlFlow::Break(error) => return Err(error),
            ControlFlow::Continue(()) => {}
        }
        let other = ast::visit_expressions(parsed, |part| {
            match placeholder(part).filter(|name| name.starts_with(':')) {
                Some(name) => ControlFlow::Break(name.to_owned()),
                None => ControlFlow::Continue(()),
            }
        });
        match other {
            ControlFlow::Break(name) => Err(Error::invalid(format!(
                "'{name}' stands outside of a list, expected a set of values only as in x IN ({name})"
            ))),
            ControlFlow::Continue(()) => Ok(literals),
        }
    }

    /// Types of the parameters.
    pub(crate) fn types(&self) -> Vec<Option<FieldRef>> {
        let double = Arc::new(Field::new("literal", DataType::Float64, false));
        let boolean = Arc::new(Field::new("not", DataType::Boolean, false));
        let types = self.parameters.iter().map(|parameter| match parameter {
            Parameter::Prefix(ast::UnaryOperator::Not) => Arc::clone(&boolean),
            _ => Arc::clone(&double),
        });
        types.map(Some).collect()
    }

    /// Replaces the parameters of a planned expression by literals that carry their text, and by prefix operators. A literal includes its
    /// sign.
    pub(crate) fn restored(&self, planned: Expr) -> Result<Expr> {
        let restored = planned.transform_up(|part| {
            Ok(Transformed::yes(match part {
                Expr::Placeholder(parameter) => match self.parameter_of(&parameter.id) {
                    Some(Parameter::Number(text)) => literal(text),
                    _ => Expr::Placeholder(parameter),
                },
                Expr::InList(InList { expr, list, negated }) => {
                    let set = match &list[..] {
                        [Expr::Placeholder(parameter)] => self.parameter_of(&parameter.id),
                        _ => None,
                    };
                    match set {
                        Some(Parameter::Set((name, set))) => {
                            let member = member_of(name, set, *expr);
                            if negated { Expr::Not(Box::new(member)) } else { member }
                        }
                        _ => Expr::InList(InList { expr, list, negated }),
                    }
                }
                Expr::Negative(inner) => negative(inner),
                Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                    if self.is_prefix(&right, &ast::UnaryOperator::Not) {
                        Expr::Not(left)
                    } else if self.is_prefix(&left, &ast::UnaryOperator::Minus) {
                        negative(right)
                    } else {
                        Expr::BinaryExpr(BinaryExpr { left, op, right })
                    }
                }
                part => part,
            }))
        });
        restored.map(|restored| restored.data)
    }

    /// Returns the parameter for a number that DataFusion would round; `None` for 64-bit integers, and for texts that are not decimal
    /// numbers.
    fn parameter(&mut self, text: String) -> Option<ast::Expr> {
        let is_integer = text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
        if is_integer || text.parse::<f64>().is_err() || Number::parse(&text).is_none() {
            return None;
        }
        Some(self.add(Parameter::Number(text)))
    }

    fn add(&mut self, parameter: Parameter<'a>) -> ast::Expr {
        self.parameters.push(parameter);
        ast::Expr::Value(ast::Value::Placeholder(format!("${}", self.parameters.len())).into())
    }

    /// Replaces a prefix operator, whose operand is planned already.
    fn prefixed(&mut self, op: ast::UnaryOperator, operand: ast::Expr) -> ast::Expr {
        let operand = Box::new(ast::Expr::Nested(Box::new(operand)));
        let parameter = Box::new(self.add(Parameter::Prefix(op)));
        match op {
            ast::UnaryOperator::Not => {
                ast::Expr::BinaryOp { left: operand, op: ast::BinaryOperator::Eq, right: parameter }
            }
            _ => ast::Expr::BinaryOp { left: parameter, op: ast::BinaryOperator::Minus, right: operand },
        }
    }

    /// True if a part of a planned expression stands for the prefix operator `op`.
    fn is_prefix(&self, part: &Expr, op: &ast::UnaryOperator) -> bool {
        let Expr::Placeholder(parameter) = part else { return false };
        matches!(self.parameter_of(&parameter.id), Some(Parameter::Prefix(found)) if found == op)
    }

    fn parameter_of(&self, id: &str) -> Option<&Parameter<'a>> {
        let number: usize = id.strip_prefix('$')?.parse().ok()?;
        self.parameters.get(number.checked_sub(1)?)
    }

    /// Returns the parameter for the set with this name, which has a colon in the text of the expression.
    fn set(&mut self, name: &str) -> Result<ast::Expr, Error> {
        match self.sets.iter().find(|(known, _)| Some(known.as_str()) == name.strip_prefix(':')) {
            Some(set) => Ok(self.add(Parameter::Set(set))),
            None => {
                let known: Vec<String> = self.sets.iter().map(|(known, _)| format!("':{known}'")).collect();
                let known = match known.is_empty() {
                    true => "there are none. Only a filter has the values that are sent with it".into(),
                    false => format!("there are {}", known.join(", ")),
                };
                Err(Error::invalid(format!("there are no values '{name}' here; {known}")))
            }
        }
    }
}

impl ast::VisitorMut for Literals<'_> {
    type Break = Error;

    fn pre_visit_expr(&mut self, part: &mut ast::Expr) -> ControlFlow<Error> {
        match part {
            ast::Expr::Interval(_) => self.intervals += 1,
            ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Placeholder(name), .. })
                if !name.starts_with(':') =>
            {
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
        if let ast::Expr::InList { list, .. } = part
            && let [_, _, ..] = &list[..]
            && let Some(name) = list.iter().filter_map(placeholder).find(|name| name.starts_with(':'))
        {
            return ControlFlow::Break(Error::invalid(format!(
                "'{name}' must be alone in its list, as in x IN ({name})"
            )));
        }
        if let ast::Expr::InList { list, .. } = part
            && let [only] = &mut list[..]
            && let Some(name) = placeholder(only).filter(|name| name.starts_with(':'))
        {
            match self.set(name) {
                Ok(set) => *only = set,
                Err(error) => return ControlFlow::Break(error),
            }
        }
        if let Some(parameter) = text.and_then(|text| self.parameter(text)) {
            *part = parameter;
        }
        if self.intervals == 0
            && let ast::Expr::UnaryOp { op, expr } = part
            && is_planned_later(*op, expr)
        {
            let operand = std::mem::replace(&mut **expr, ast::Expr::Value(ast::Value::Null.into()));
            *part = self.prefixed(*op, operand);
        }
        ControlFlow::Continue(())
    }
}

/// True for prefix operators for which DataFusion's planner asks for the type of the operand. It does not for numbers and intervals, whose
/// sign it reads.
fn is_planned_later(op: ast::UnaryOperator, operand: &ast::Expr) -> bool {
    match op {
        ast::UnaryOperator::Not => true,
        ast::UnaryOperator::Minus => !matches!(operand, ast::Expr::Value(_) | ast::Expr::Interval(_)),
        _ => false,
    }
}

/// The negative of a part.
fn negative(part: Box<Expr>) -> Expr {
    match text(&part) {
        Some(text) => literal(&opposite(text)),
        None => Expr::Negative(part),
    }
}

/// Name of a parameter; `None` for other parts.
fn placeholder(part: &ast::Expr) -> Option<&str> {
    match part {
        ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Placeholder(name), .. }) => Some(name),
        _ => None,
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

/// Replaces the literals that carry a text by plain literals. A literal that is cast to a decimal type is converted exactly.
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
    Expr::Literal(ScalarValue::Float64(Some(double)), Some(metadata(TEXT, text)))
}

fn metadata(key: &str, text: &str) -> FieldMetadata {
    FieldMetadata::from(BTreeMap::from([(key.to_owned(), text.to_owned())]))
}

/// The null that `NULLIF` returns, with the text of its call for errors.
pub(super) fn null_of(null: ScalarValue, call: &str) -> Expr {
    Expr::Literal(null, Some(metadata(NULLIF, call)))
}

/// The text of the call of `NULLIF` that became `case`; `None` for others.
pub(super) fn text_of_nullif(case: &Case) -> Option<&str> {
    let [(_, null)] = &case.when_then_expr[..] else { return None };
    let Expr::Literal(_, Some(metadata)) = &**null else { return None };
    metadata.inner().get(NULLIF).map(String::as_str)
}

/// The text of a numeric literal with a fraction or an exponent; `None` for other parts.
pub(super) fn text(part: &Expr) -> Option<&str> {
    let Expr::Literal(ScalarValue::Float64(_), Some(metadata)) = part else { return None };
    metadata.inner().get(TEXT).map(String::as_str)
}

fn opposite(text: &str) -> String {
    text.strip_prefix('-').map_or_else(|| format!("-{text}"), str::to_owned)
}
