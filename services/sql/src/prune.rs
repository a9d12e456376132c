//! Evaluation of a filter on the statistics of a block.
//!
//! The result of an expression is the set of values that it can have for some row: true, false and null. Without statistics the
//! set contains all three.

use datafusion_common::{
    ScalarValue,
    tree_node::{TreeNode, TreeNodeRecursion},
};
use datafusion_expr::{Expr, Operator};

use crate::{
    Expression,
    nan::float,
    values::member::{Member, as_member},
};

/// Maximum number of values of a set that are tested against Bloom filters.
const MAX_PROBED: usize = 256;

/// Statistics of the rows of a block, by column.
pub trait Bounds {
    /// Lower and upper bound of the non-null values, not necessarily tight. NaNs are not included.
    fn range(&self, column: &str) -> Option<(ScalarValue, ScalarValue)>;

    /// Presence of nulls and presence of non-null values in the column; `None` if unknown.
    fn nulls(&self, column: &str) -> Option<(bool, bool)>;

    /// False if no row holds `value`, one of [`Expression::equality_constants`]; true if unknown.
    fn may_hold(&self, column: &str, value: &ScalarValue) -> bool;
}

/// Rows of a block that match a filter, judged by statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No row matches.
    None,
    /// All rows match.
    All,
    /// The rows have to be read.
    Unknown,
}

/// Values that an expression can have for some row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Possible {
    yes: bool,
    no: bool,
    null: bool,
}

const ANY: Possible = Possible { yes: true, no: true, null: true };

impl Expression {
    /// Returns the constants that columns are compared with for equality, as in `user = 'ann'` and `user IN ('ann', 'bob')`, for
    /// tests against Bloom filters.
    pub fn equality_constants(&self) -> Vec<(String, ScalarValue)> {
        let mut constants = Vec::new();
        let mut found_in_sets = Vec::new();
        let mut note = |column: &Expr, value: &Expr| {
            if let (Expr::Column(column), Expr::Literal(value, _)) = (column, value)
                && !value.is_null()
            {
                constants.push((column.name.clone(), value.clone()));
            }
        };
        let found = self.logical.apply(|part| {
            match part {
                Expr::BinaryExpr(binary) if matches!(binary.op, Operator::Eq | Operator::NotEq) => {
                    note(&binary.left, &binary.right);
                    note(&binary.right, &binary.left);
                }
                Expr::ScalarFunction(call) => {
                    if let Some((member, Expr::Column(column))) = as_member(call) {
                        let values = member.constants(MAX_PROBED).unwrap_or_default();
                        found_in_sets.extend(values.into_iter().map(|value| (column.name.clone(), value)));
                    }
                }
                Expr::InList(list) => list.list.iter().for_each(|value| note(&list.expr, value)),
                _ => {}
            }
            Ok(TreeNodeRecursion::Continue)
        });
        found.expect("the visitor returns no errors");
        constants.extend(found_in_sets);
        constants
    }

    /// Number of nodes of the expression, the cost of [`verdict`](Self::verdict).
    pub fn nodes(&self) -> usize {
        let mut nodes = 0;
        let counted = self.logical.apply(|_| {
            nodes += 1;
            Ok(TreeNodeRecursion::Continue)
        });
        counted.expect("the visitor returns no errors");
        nodes
    }

    /// Evaluates this filter on the statistics of a block.
    pub fn verdict(&self, bounds: &dyn Bounds) -> Verdict {
        match possible(&self.logical, bounds) {
            Possible { yes: false, .. } => Verdict::None,
            Possible { no: false, null: false, .. } => Verdict::All,
            _ => Verdict::Unknown,
        }
    }
}

impl Possible {
    fn not(self) -> Self {
        Self { yes: self.no, no: self.yes, null: self.null }
    }

    /// Kleene's conjunction: false dominates, then null.
    fn and(self, other: Self) -> Self {
        Self {
            yes: self.yes && other.yes,
            no: self.no || other.no,
            null: (self.null && (other.null || other.yes)) || (other.null && self.yes),
        }
    }

    fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }
}

fn possible(filter: &Expr, bounds: &dyn Bounds) -> Possible {
    match filter {
        Expr::Literal(ScalarValue::Boolean(value), _) => {
            Possible { yes: *value == Some(true), no: *value == Some(false), null: value.is_none() }
        }
        Expr::Not(inner) => possible(inner, bounds).not(),
        Expr::Column(column) => {
            compare(&column.name, Operator::Eq, &ScalarValue::Boolean(Some(true)), bounds)
        }
        Expr::IsTrue(inner) => is_certain(possible(inner, bounds)),
        Expr::IsNotFalse(inner) => is_certain(possible(inner, bounds).not()).not(),
        Expr::IsNull(inner) => is_null(inner, bounds),
        Expr::IsNotNull(inner) => is_null(inner, bounds).not(),
        Expr::InList(list) => {
            let equals = |value: &Expr| comparison(&list.expr, Operator::Eq, value, bounds);
            let none = Possible { yes: false, no: true, null: false };
            let any = list.list.iter().map(equals).fold(none, Possible::or);
            if list.negated { any.not() } else { any }
        }
        Expr::ScalarFunction(call) => match as_member(call) {
            Some((member, Expr::Column(column))) => membership(&column.name, member, bounds),
            _ => ANY,
        },
        Expr::BinaryExpr(binary) => match binary.op {
            Operator::And => possible(&binary.left, bounds).and(possible(&binary.right, bounds)),
            Operator::Or => possible(&binary.left, bounds).or(possible(&binary.right, bounds)),
            op => comparison(&binary.left, op, &binary.right, bounds),
        },
        _ => ANY,
    }
}

/// `IS TRUE` of a condition.
fn is_certain(condition: Possible) -> Possible {
    Possible { yes: condition.yes, no: condition.no || condition.null, null: false }
}

fn is_null(inner: &Expr, bounds: &dyn Bounds) -> Possible {
    let Expr::Column(column) = inner else { return Possible { null: false, ..ANY } };
    match bounds.nulls(&column.name) {
        Some((nulls, values)) => Possible { yes: nulls, no: values, null: false },
        None => Possible { null: false, ..ANY },
    }
}

/// `column IN (:name)`.
fn membership(column: &str, member: &Member, bounds: &dyn Bounds) -> Possible {
    let (null, values) = bounds.nulls(column).unwrap_or((true, true));
    if !values {
        return Possible { yes: false, no: false, null };
    }
    let never = Possible { yes: false, no: true, null };
    let within = || {
        let (least, greatest) = bounds.range(column)?;
        // Some writers take a NaN as a bound, which says nothing about the other values.
        if [&least, &greatest].into_iter().any(|bound| float(bound).is_some_and(f64::is_nan)) {
            return None;
        }
        let (any, all) = member.within(&least, &greatest)?;
        // Bounds do not include NaNs, which are members of no set.
        Some((any, all && float(&least).is_none()))
    };
    let (any, all) = within().unwrap_or((true, false));
    if !any {
        return never;
    }
    if let Some(constants) = member.constants(MAX_PROBED)
        && !constants.iter().any(|value| bounds.may_hold(column, value))
    {
        return never;
    }
    Possible { yes: true, no: !all, null }
}

/// A comparison of a column with a constant, in either order.
fn comparison(left: &Expr, op: Operator, right: &Expr, bounds: &dyn Bounds) -> Possible {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    // Other operators, such as IS DISTINCT FROM, are not null where one side is null.
    if !matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq) {
        return ANY;
    }
    match (left, right) {
        (Expr::Column(column), Expr::Literal(value, _)) => compare(&column.name, op, value, bounds),
        (Expr::Literal(value, _), Expr::Column(column)) => match op.swap() {
            Some(op) => compare(&column.name, op, value, bounds),
            None => ANY,
        },
        _ => ANY,
    }
}

fn compare(column: &str, op: Operator, value: &ScalarValue, bounds: &dyn Bounds) -> Possible {
    if value.is_null() {
        return Possible { yes: false, no: false, null: true };
    }
    if float(value).is_some_and(f64::is_nan) {
        return ANY;
    }
    let (null, values) = bounds.nulls(column).unwrap_or((true, true));
    if !values {
        return Possible { yes: false, no: false, null };
    }
    let equal = matches!(op, Operator::Eq | Operator::NotEq);
    if equal && !bounds.may_hold(column, value) {
        let unequal = op == Operator::NotEq;
        return Possible { yes: unequal, no: !unequal, null };
    }
    let unknown = Possible { null, ..ANY };
    let Some((least, greatest)) = bounds.range(column) else { return unknown };
    // Some writers take a NaN as a bound, which says nothing about the other values.
    if [&least, &greatest].into_iter().any(|bound| float(bound).is_some_and(f64::is_nan)) {
        return unknown;
    }
    // A writer may take either zero as a bound of both.
    let (least, greatest) = (with_sign_of_zero(least, true), with_sign_of_zero(greatest, false));
    // A comparison may or may not treat 0.0 and -0.0 as equal, so both zeros are tried.
    let other_zero = (float(value) == Some(0.0))
        .then(|| value.arithmetic_negate().expect("a float has a negative of the same type"));
    let each = std::iter::once(value).chain(&other_zero).map(|value| against(op, value, &least, &greatest));
    let any = |a: (bool, bool), b: (bool, bool)| (a.0 || b.0, a.1 || b.1);
    match each.reduce(|a, b| Some(any(a?, b?))).flatten() {
        Some((yes, no)) => Possible { yes, no, null },
        None => unknown,
    }
}

/// Gives a zero of a float type this sign.
fn with_sign_of_zero(value: ScalarValue, is_negative: bool) -> ScalarValue {
    let is_other = float(&value).is_some_and(|zero| zero == 0.0 && zero.is_sign_negative() != is_negative);
    if is_other { value.arithmetic_negate().unwrap_or(value) } else { value }
}

/// Compares the values from `least` to `greatest` with `value`. True first if some value satisfies the comparison, true second if
/// some value does not; `None` if that is unknown.
fn against(
    op: Operator,
    value: &ScalarValue,
    least: &ScalarValue,
    greatest: &ScalarValue,
) -> Option<(bool, bool)> {
    let (least, greatest) = (least.partial_cmp(value)?, greatest.partial_cmp(value)?);
    // Bounds do not include NaNs, which compare greater than all numbers.
    let nans = float(value).is_some();
    let above = |yes: bool| yes || nans;
    Some(match op {
        Operator::Eq => (least.is_le() && greatest.is_ge(), above(!(least.is_eq() && greatest.is_eq()))),
        Operator::NotEq => (above(!(least.is_eq() && greatest.is_eq())), least.is_le() && greatest.is_ge()),
        Operator::Lt => (least.is_lt(), above(greatest.is_ge())),
        Operator::LtEq => (least.is_le(), above(greatest.is_gt())),
        Operator::Gt => (above(greatest.is_gt()), least.is_le()),
        Operator::GtEq => (above(greatest.is_ge()), least.is_lt()),
        _ => return None,
    })
}
