//! Compilation of expressions: parsing, validation, type coercion and simplification.

use std::{fmt, sync::Arc};

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, FieldRef, Schema};
use datafusion_common::{
    DFSchema, DataFusionError, ScalarValue,
    tree_node::{Transformed, TreeNode, TreeNodeRecursion},
};
use datafusion_expr::{
    Expr, ExprSchemable, Operator, execution_props::ExecutionProps, expr::Like, simplify::SimplifyContext,
};
use datafusion_optimizer::simplify_expressions::ExprSimplifier;
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion_sql::{
    planner::{PlannerContext, SqlToRel},
    sqlparser::{
        parser::Parser,
        tokenizer::{Token, Tokenizer},
    },
};

use crate::{
    Error, ValueSet,
    dialect::ExpressionDialect,
    exact::{
        kind::shown,
        literals::{Literals, NamedSet, resolved},
        with_exact_comparisons,
    },
    expression_identity::identity_of,
    functions,
    growth::{BYTES_PER_VALUE, SLICE_COST, Sizes, wildcards},
    guard::guarded,
    intervals::with_exact_sums,
    lower::{lowered, one_row, value_of},
    planner::Context,
    supported::{check_supported, first_clause, first_unsupported},
    values::member::as_member,
};

/// Maximum length of an expression, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Maximum number of tokens. A chain of operators is as deep as its number of tokens.
const MAX_TOKENS: usize = 2048;
/// Maximum nesting of parentheses and calls.
const MAX_DEPTH: usize = 50;
/// Maximum number of nodes after expansion of BETWEEN, COALESCE and the like.
const MAX_NODES: u64 = 20_000;
/// Maximum [complexity](Expression::complexity) of an expression. Compiling one takes up to 2.5 s.
pub const MAX_COMPLEXITY: u64 = 500_000;
/// Maximum number of wildcards in a pattern of LIKE. The time to match a text is proportional to it.
const MAX_WILDCARDS: usize = 100;
/// Stack size for compilation, in bytes: the passes over an expression are recursive.
const STACK_BYTES: usize = 64 << 20;

/// A compiled expression: a pure function of columns of one row.
#[derive(Clone)]
pub struct Expression {
    field: FieldRef,
    /// Number of nodes after expansion.
    nodes: u64,
    complexity: u64,
    inputs: Vec<usize>,
    identity: u128,
    pub(crate) logical: Expr,
    pub(crate) physical: Arc<dyn PhysicalExpr>,
    sizes: Sizes,
    sets: Vec<String>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} AS {}", self.logical, self.field.name())
    }
}

impl Expression {
    /// Compiles `text`, a column of `schema` or an expression with a name (`log1p(delay) AS y`).
    ///
    /// # Errors
    /// [`Error::UnknownColumn`], and [`Error::Invalid`] if `text` is not an expression of one row, has no name, or is too large.
    pub fn column(text: &str, schema: &Schema) -> Result<Self, Error> {
        with_deep_stack(|| compile(text, schema, true, &[])).map_err(Error::without_metadata)
    }

    /// Compiles `text`, a row condition. A row for which the condition is null does not match.
    ///
    /// # Errors
    /// As [`column`](Self::column), and [`Error::Invalid`] if `text` is not a boolean.
    pub fn filter(text: &str, schema: &Schema) -> Result<Self, Error> {
        Self::filter_with(text, schema, &[])
    }

    /// Compiles `text` as [`filter`](Self::filter) does. It may refer to `sets` by their names, as in `id IN (:ids)` and
    /// `id NOT IN (:ids)`. A null is neither a member of a set nor none.
    ///
    /// # Errors
    /// As [`filter`](Self::filter), and [`Error::Invalid`] for an unknown set, and for one whose values cannot be compared with those in
    /// front of `IN`.
    pub fn filter_with(text: &str, schema: &Schema, sets: &[(String, Arc<ValueSet>)]) -> Result<Self, Error> {
        let compiled =
            with_deep_stack(|| compile(text, schema, false, sets)).map_err(Error::without_metadata)?;
        match compiled.field.data_type() {
            DataType::Boolean => Ok(compiled),
            other => Err(Error::invalid(format!("is of type {other}, expected a boolean"))),
        }
    }

    /// Name, type and nullability of the result.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// Sum over all parts of the expression, nested ones included, of the number of nodes of the part. The time for compilation
    /// is proportional to it, because the type of each part is derived from all nodes below.
    pub fn complexity(&self) -> u64 {
        self.complexity
    }

    /// Indexes of the columns that the expression reads, ascending.
    pub fn inputs(&self) -> &[usize] {
        &self.inputs
    }

    /// The identity of the computed values, independent of the name of the result: equal only for equal expressions over
    /// equal columns. It changes when [the semantics of expressions](crate::SEMANTICS) do, and not with versions of libraries.
    pub fn identity(&self) -> u128 {
        self.identity
    }

    /// Hashes of the sets of values that the expression refers to, in the order of its parts.
    pub fn sets(&self) -> &[String] {
        &self.sets
    }

    /// Returns the column if the expression is a plain column name.
    pub fn is_column(&self) -> Option<usize> {
        matches!(self.logical, Expr::Column(_)).then(|| self.inputs[0])
    }

    /// Estimated bytes of the values of `rows` rows, given the bytes of each input column of these rows by its position in
    /// the schema.
    pub fn expected_bytes(&self, rows: u64, bytes_of: impl Fn(usize) -> u64) -> u64 {
        self.sizes.result_bytes(rows, bytes_of)
    }

    /// Returns true if evaluating the rows of `batch`, whose columns are [`inputs`](Self::inputs), takes little memory.
    pub fn is_small(&self, batch: &RecordBatch) -> bool {
        self.sizes.work_bytes(batch, &self.inputs).div_ceil(BYTES_PER_VALUE) <= SLICE_COST
    }

    /// Estimated cost of evaluating the rows of `batch`, in values that are computed: one for each row and node of the expression,
    /// or one for each 4 bytes of memory that the evaluation takes, if that is more.
    pub(crate) fn cost(&self, batch: &RecordBatch) -> u64 {
        let values = self.nodes.saturating_mul(batch.num_rows() as u64);
        values.max(self.sizes.work_bytes(batch, &self.inputs).div_ceil(BYTES_PER_VALUE))
    }
}

/// Runs `work` on a thread with a large stack, for recursion over chains of thousands of operators.
fn with_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("sql".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work).expect("the system can start a thread");
        match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn compile(text: &str, schema: &Schema, named: bool, sets: &[NamedSet]) -> Result<Expression, Error> {
    let planned = plan(text, schema, sets)?;
    let (name, logical) = match planned {
        Expr::Alias(alias) if named => (alias.name, *alias.expr),
        Expr::Column(column) if named => (column.name.clone(), Expr::Column(column)),
        _ if named => return Err(Error::invalid(format!("'{}' has no name, add one with AS", text.trim()))),
        Expr::Alias(_) => return Err(Error::invalid("has an alias, expected none")),
        filter => ("filter".to_owned(), filter),
    };
    check_supported(&logical)?;
    let Expanded { nodes, complexity } = Expanded::of(&logical);
    if nodes > MAX_NODES {
        return Err(Error::invalid(format!(
            "expands to more than {MAX_NODES} nodes; nest BETWEEN, COALESCE and CASE less"
        )));
    }
    if complexity > MAX_COMPLEXITY {
        return Err(Error::invalid(format!(
            "is too complex: the sizes of its parts add up to {complexity} nodes, expected at most {MAX_COMPLEXITY}; use shorter \
             chains of operators"
        )));
    }
    let whole = dfschema(schema)?;
    let context = SimplifyContext::builder().with_schema(Arc::clone(&whole)).build();
    let simplifier = ExprSimplifier::new(context.clone());
    let summed = with_exact_sums(logical, &whole)?;
    let compared = with_exact_comparisons(summed, &whole, &simplifier)?;
    let coerced = resolved(simplifier.coerce(compared, &whole)?)?;
    let logical = lowered(coerced, &whole, &context)?;
    check_constants(&logical, &whole)?;
    let mut inputs: Vec<usize> =
        logical.column_refs().iter().filter_map(|column| schema.index_of(&column.name).ok()).collect();
    inputs.sort_unstable();
    let projected = schema.project(&inputs).map_err(|error| Error::invalid(error.to_string()))?;
    let input_schema = dfschema(&projected)?;
    let physical = create_physical_expr(&logical, &input_schema, &ExecutionProps::new(), &Default::default())
        .and_then(|physical| guarded(physical, &projected))?;
    let nullable = physical.nullable(&projected)?;
    let data_type = delivered(physical.data_type(&projected)?)?;
    let identity = identity_of(&logical, &projected, &data_type)?;
    let sizes = Sizes::of(&logical, &whole, schema)?;
    let sets = sets_of(&logical);
    let nodes = sets.iter().fold(nodes, |nodes, (cost, _)| nodes.saturating_add(*cost));
    let sets = sets.into_iter().map(|(_, sha256)| sha256).collect();
    let field = Arc::new(Field::new(name, data_type, nullable));
    Ok(Expression { field, nodes, complexity, inputs, identity, logical, physical, sizes, sets })
}

/// Costs of the tests of membership in sets of values, in nodes, and the hashes of the sets.
fn sets_of(expression: &Expr) -> Vec<(u64, String)> {
    let mut sets = Vec::new();
    let visited = expression.apply(|part| {
        if let Expr::ScalarFunction(call) = part
            && let Some((member, _)) = as_member(call)
        {
            sets.push((member.nodes(), member.set.sha256().to_owned()));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    visited.expect("the visitor returns no errors");
    sets
}

/// Size after expansion, where BETWEEN, COALESCE and the like duplicate their operands.
#[derive(Clone, Copy)]
struct Expanded {
    nodes: u64,
    complexity: u64,
}

impl Expanded {
    fn of(expression: &Expr) -> Self {
        let (mut nodes, mut complexity) = (0_u64, 0_u64);
        let mut first: Option<Self> = None;
        let counted = expression.apply_children(|child| {
            let child = Self::of(child);
            first.get_or_insert(child);
            nodes = nodes.saturating_add(child.nodes);
            complexity = complexity.saturating_add(child.complexity);
            Ok(TreeNodeRecursion::Continue)
        });
        debug_assert!(counted.is_ok(), "nothing above fails");
        let doubles = match expression {
            Expr::Between(_) | Expr::Case(_) => true,
            Expr::ScalarFunction(call) => matches!(call.name(), "coalesce" | "nullif" | "nvl" | "nvl2"),
            _ => false,
        };
        // A list with a part that is not a constant becomes one comparison per item.
        let copies = match expression {
            Expr::InList(list) if list.list.iter().any(|item| !matches!(item, Expr::Literal(..))) => {
                list.list.len() as u64 + 1
            }
            _ if doubles => 2,
            _ => 1,
        };
        // The operand of CASE may become a part of one comparison per branch.
        let of_operands = match (expression, first) {
            (Expr::Case(case), Some(operand)) if case.expr.is_some() => {
                let branches = case.when_then_expr.len() as u64;
                let Self { nodes, complexity } = operand;
                Self {
                    nodes: nodes.saturating_mul(branches),
                    complexity: complexity.saturating_mul(branches),
                }
            }
            _ => Self { nodes: 0, complexity: 0 },
        };
        let nodes = nodes.saturating_mul(copies).saturating_add(of_operands.nodes).saturating_add(1);
        let complexity = complexity.saturating_add(of_operands.complexity);
        Self { nodes, complexity: complexity.saturating_mul(copies).saturating_add(nodes) }
    }
}

/// Checks constant arithmetic, the constant arguments of functions and the patterns of LIKE, so that their errors are errors of
/// compilation.
///
/// # Errors
/// [`Error::Failed`] for an overflow, and [`Error::Invalid`] for an argument or a pattern that has to be a constant or has a value that
/// is refused.
fn check_constants(expression: &Expr, schema: &DFSchema) -> Result<(), Error> {
    let row = one_row()?;
    let mut refused = None;
    expression.apply(|part| {
        refused = match part {
            Expr::BinaryExpr(binary)
                if matches!(binary.op, Operator::Plus | Operator::Minus | Operator::Multiply)
                    && part.column_refs().is_empty() =>
            {
                value_of(part, &row).err().map(|error| Error::from_evaluation(&error))
            }
            Expr::Like(like) => check_pattern(like, &row).err(),
            Expr::ScalarFunction(call) if functions::has_constant_arguments(call.name()) => {
                match call.args[1..].iter().find(|argument| !matches!(argument, Expr::Literal(..))) {
                    Some(argument) => Some(Error::invalid(match value_of(argument, &row) {
                        Err(error) if argument.column_refs().is_empty() => {
                            format!("{}: {}", call.name(), Error::from_evaluation(&error))
                        }
                        _ => format!("{}: {} must be a constant", call.name(), shown(argument)),
                    })),
                    None => {
                        let mut call = call.clone();
                        let null = ScalarValue::try_from(&call.args[0].get_type(schema)?)?;
                        call.args[0] = Expr::Literal(null, None);
                        let checked = value_of(&Expr::ScalarFunction(call), &row);
                        checked.err().map(|error| match Error::from_evaluation(&error) {
                            Error::Failed(reason) => Error::Invalid(reason),
                            other => other,
                        })
                    }
                }
            }
            _ => None,
        };
        Ok(if refused.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    refused.map_or(Ok(()), Err)
}

/// Checks that the pattern of LIKE is a constant of limited size. A pattern becomes a regular expression, and compiling one for each row
/// takes long.
fn check_pattern(like: &Like, row: &RecordBatch) -> Result<(), Error> {
    let Expr::Literal(pattern, _) = &*like.pattern else {
        return Err(Error::invalid(format!(
            "LIKE: the pattern {} must be a constant; compare columns with contains, starts_with or ends_with",
            shown(&like.pattern)
        )));
    };
    let wildcards = wildcards(pattern);
    if wildcards > MAX_WILDCARDS {
        return Err(Error::invalid(format!(
            "LIKE: the pattern has {wildcards} wildcards, expected at most {MAX_WILDCARDS}"
        )));
    }
    let text = ScalarValue::from("").cast_to(&pattern.data_type())?;
    let of_text = Like { expr: Box::new(Expr::Literal(text, None)), ..like.clone() };
    value_of(&Expr::Like(of_text), row).map_err(|error| Error::invalid(format!("LIKE: {error}")))?;
    Ok(())
}

/// Replaces functions that the planner does not look up by name, such as those of `EXTRACT` and `POSITION`.
fn with_own_functions(expression: Expr) -> Result<Expr, Error> {
    let replaced = expression.transform_up(|part| match part {
        Expr::ScalarFunction(mut call) => {
            if let Some(own) = functions::all().get(call.name()) {
                call.func = Arc::clone(own);
            }
            if let ("round", Some(digits)) = (call.func.name(), call.args.get_mut(1)) {
                with_constant_digits(digits)?;
            }
            Ok(Transformed::yes(Expr::ScalarFunction(call)))
        }
        part => Ok(Transformed::no(part)),
    });
    Ok(replaced?.data)
}

/// Evaluates a constant number of digits, and converts it to `INTEGER`, before types are coerced. The type of `round` of a decimal depends on this
/// constant, but DataFusion does not see a constant that is still to be converted. Comparisons would then be prepared for the wrong type.
fn with_constant_digits(digits: &mut Expr) -> datafusion_common::Result<()> {
    if !digits.column_refs().is_empty() {
        return Ok(());
    }
    let Ok(value) = value_of(digits, &one_row()?) else { return Ok(()) };
    if value.data_type().is_integer()
        && let Ok(value) = value.cast_to(&DataType::Int32)
    {
        *digits = Expr::Literal(value, None);
    }
    Ok(())
}

fn dfschema(schema: &Schema) -> Result<Arc<DFSchema>, Error> {
    Ok(Arc::new(DFSchema::try_from(Schema::new(schema.fields().clone()))?))
}

fn plan(text: &str, schema: &Schema, sets: &[NamedSet]) -> Result<Expr, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::invalid(format!("has {} bytes, expected at most {MAX_BYTES}", text.len())));
    }
    let dialect = ExpressionDialect;
    let tokens =
        Tokenizer::new(&dialect, text).tokenize().map_err(|error| Error::invalid(error.to_string()))?;
    let count = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).count();
    if count > MAX_TOKENS {
        return Err(Error::invalid(format!("has {count} tokens, expected at most {MAX_TOKENS}")));
    }
    let mut parser = Parser::new(&dialect).with_recursion_limit(MAX_DEPTH).with_tokens(tokens);
    let mut parsed = parser.parse_expr_with_alias().map_err(|error| Error::invalid(error.to_string()))?;
    match parser.next_token().token {
        Token::EOF => {}
        more => return Err(Error::invalid(format!("has '{more}' after its end"))),
    }
    let context = Context::new();
    let planner = SqlToRel::new_with_options(
        &context,
        datafusion_sql::planner::ParserOptions {
            // Names are case-sensitive, with or without quotes.
            enable_ident_normalization: false,
            map_string_types_to_utf8view: false,
            ..Default::default()
        },
    );
    let schema = dfschema(schema)?;
    let clause = first_clause(&parsed.expr);
    if let Some(why) = first_unsupported(&parsed.expr) {
        return Err(Error::Invalid(why));
    }
    let literals = Literals::of(&mut parsed.expr, sets)?;
    let mut context = PlannerContext::new().with_prepare_param_data_types(literals.types());
    let planned = planner.sql_to_expr_with_alias(parsed, &schema, &mut context);
    let planned = planned.map_err(|error| match error.find_root() {
        // The message contains the syntax tree.
        DataFusionError::NotImplemented(reason) if reason.starts_with("Unsupported ast node") => {
            Error::invalid(format!("'{}' has syntax that is not supported", text.trim()))
        }
        _ => error.into(),
    })?;
    let planned = with_own_functions(literals.restored(planned)?)?;
    match clause {
        Some(call) => Err(Error::invalid(format!(
            "'{call}' is not an expression of one row, expected no clauses such as OVER, FILTER or DISTINCT"
        ))),
        None => Ok(planned),
    }
}

/// Returns the type in which a computed type is delivered.
fn delivered(data_type: DataType) -> Result<DataType, Error> {
    Ok(match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, value) => *value,
        DataType::Null => return Err(Error::invalid("is always null: CAST it to a type")),
        other => other,
    })
}

#[cfg(test)]
mod tests;
