//! From text to something that can be evaluated.

use std::{fmt, sync::Arc};

use arrow_array::{
    Array, ArrayRef, RecordBatch, RecordBatchOptions,
    cast::AsArray,
    types::{Float32Type, Float64Type},
};
use arrow_cast::cast;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, FieldRef, Schema};
use datafusion_common::{
    Column, DFSchema, ScalarValue, TableReference,
    config::ConfigOptions,
    plan_err,
    tree_node::{Transformed, TreeNode, TreeNodeRecursion},
};
use datafusion_expr::{
    AggregateUDF, Expr, GetFieldAccess, HigherOrderUDF, Operator, ScalarUDF, TableSource, Volatility,
    WindowUDF,
    execution_props::ExecutionProps,
    planner::{ContextProvider, ExprPlanner, PlannerResult, RawFieldAccessExpr},
    simplify::{ExprSimplifyResult, SimplifyContext},
};
use datafusion_optimizer::simplify_expressions::ExprSimplifier;
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr, expressions::BinaryExpr};
use datafusion_sql::{
    planner::{PlannerContext, SqlToRel},
    sqlparser::{
        dialect::GenericDialect,
        parser::Parser,
        tokenizer::{Token, Tokenizer},
    },
};
use xxhash_rust::xxh3::xxh3_128;

use crate::{Error, functions};

/// Longest text of an expression, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Most words and signs in it: a chain of so many operators is as deep.
const MAX_TOKENS: usize = 2048;
/// Deepest nesting of parentheses and calls.
const MAX_DEPTH: usize = 50;
/// Most parts of it once it is written out.
const MAX_PARTS: u64 = 20_000;
/// Stack on which it is compiled: the walks over it are recursive.
const STACK_BYTES: usize = 64 << 20;
/// Part of every identity: another meaning of the same words is another version.
const VERSION: u32 = 1;

/// A compiled expression: a pure function of some columns of a row.
#[derive(Clone)]
pub struct Expression {
    field: FieldRef,
    inputs: Vec<usize>,
    identity: u128,
    pub(crate) logical: Expr,
    physical: Arc<dyn PhysicalExpr>,
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
    /// [`Error::UnknownColumn`], and [`Error::Invalid`] for what is no expression of one row, has no name, or is too large.
    pub fn column(text: &str, schema: &Schema) -> Result<Self, Error> {
        on_a_deep_stack(|| compile(text, schema, true))
    }

    /// Compiles `text`, which says of each row whether it is kept; a row for which it is null is not.
    ///
    /// # Errors
    /// As for [`column`](Self::column), and [`Error::Invalid`] when it is no boolean.
    pub fn filter(text: &str, schema: &Schema) -> Result<Self, Error> {
        let compiled = on_a_deep_stack(|| compile(text, schema, false))?;
        match compiled.field.data_type() {
            DataType::Boolean => Ok(compiled),
            other => Err(Error::invalid(format!("is of type {other}, expected a boolean"))),
        }
    }

    /// Name, type, and whether there may be nulls.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// The columns of the schema that it reads, ascending.
    pub fn inputs(&self) -> &[usize] {
        &self.inputs
    }

    /// Names what is computed, whatever the result is called: equal only for equal expressions over equal columns.
    pub fn identity(&self) -> u128 {
        self.identity
    }

    /// The column that it merely names, if that is all.
    pub fn is_column(&self) -> Option<usize> {
        matches!(self.logical, Expr::Column(_)).then(|| self.inputs[0])
    }

    /// The values for the rows of `batch`, whose columns are [`inputs`](Self::inputs).
    ///
    /// # Errors
    /// [`Error::Failed`] when one of the rows has no result.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, Error> {
        let batch = &one_nan(batch)?;
        let values = self.physical.evaluate(batch).map_err(|error| Error::of_row(&error))?;
        let array = values.into_array(batch.num_rows()).map_err(|error| Error::of_row(&error))?;
        if array.data_type() == self.field.data_type() {
            return Ok(array);
        }
        cast(&array, self.field.data_type()).map_err(|error| Error::Failed(error.to_string()))
    }
}

/// The same with one NaN for all: Arrow sorts one whose sign bit is set, which is what x86 makes of 0/0, before all numbers
/// and not behind them.
fn one_nan(batch: &RecordBatch) -> Result<RecordBatch, Error> {
    let strange = |column: &ArrayRef| match column.data_type() {
        DataType::Float32 => {
            column.as_primitive::<Float32Type>().values().iter().any(|x| x.is_nan() && x.is_sign_negative())
        }
        DataType::Float64 => {
            column.as_primitive::<Float64Type>().values().iter().any(|x| x.is_nan() && x.is_sign_negative())
        }
        _ => false,
    };
    if !batch.columns().iter().any(strange) {
        return Ok(batch.clone());
    }
    let plain = |column: &ArrayRef| -> ArrayRef {
        match column.data_type() {
            DataType::Float32 => Arc::new(
                column
                    .as_primitive::<Float32Type>()
                    .unary::<_, Float32Type>(|x| if x.is_nan() { f32::NAN } else { x }),
            ),
            DataType::Float64 => Arc::new(
                column
                    .as_primitive::<Float64Type>()
                    .unary::<_, Float64Type>(|x| if x.is_nan() { f64::NAN } else { x }),
            ),
            _ => Arc::clone(column),
        }
    };
    let columns = batch.columns().iter().map(plain).collect();
    RecordBatch::try_new(batch.schema(), columns).map_err(|error| Error::Failed(error.to_string()))
}

/// The walks over a chain of a thousand operators are as deep.
fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("sql".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, work).expect("a thread to compile an expression on");
        match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// COALESCE and its like as the CASE that they stand for: they have no value of their own, which constants are asked for.
fn spell_out(coerced: Expr, context: &SimplifyContext) -> Result<Expr, Error> {
    let spelled = coerced.transform_up(|part| {
        let mut part = Transformed::no(part);
        while let Expr::ScalarFunction(call) = &part.data
            && call.func.short_circuits()
        {
            match call.func.simplify(call.args.clone(), context)? {
                ExprSimplifyResult::Simplified(spelled) => part = Transformed::yes(spelled),
                ExprSimplifyResult::Original(_) => break,
            }
        }
        Ok(part)
    });
    spelled.map(|spelled| spelled.data).map_err(|error| Error::of_plan(&error))
}

fn compile(text: &str, schema: &Schema, named: bool) -> Result<Expression, Error> {
    let planned = plan(text, schema)?;
    let (name, logical) = match planned {
        Expr::Alias(alias) if named => (alias.name, *alias.expr),
        Expr::Column(column) if named => (column.name.clone(), Expr::Column(column)),
        _ if named => return Err(Error::invalid(format!("'{}' has no name: add AS and one", text.trim()))),
        Expr::Alias(_) => return Err(Error::invalid("has a name, and needs none")),
        filter => ("filter".to_owned(), filter),
    };
    refuse_impure(&logical)?;
    if expanded(&logical) > MAX_PARTS {
        return Err(Error::invalid(format!(
            "grows to more than {MAX_PARTS} parts: nest BETWEEN and COALESCE less"
        )));
    }
    let whole = dfschema(schema)?;
    let context = SimplifyContext::builder().with_schema(Arc::clone(&whole)).build();
    let simplifier = ExprSimplifier::new(context.clone());
    let coerced = simplifier.coerce(logical, &whole).map_err(|error| Error::of_plan(&error))?;
    let spelled = spell_out(coerced, &context)?;
    refuse_overflow(&spelled)?;
    let logical = simplifier.simplify(spelled).map_err(|error| Error::of_plan(&error))?;
    let mut inputs: Vec<usize> =
        logical.column_refs().iter().filter_map(|column| schema.index_of(&column.name).ok()).collect();
    inputs.sort_unstable();
    let projected = schema.project(&inputs).map_err(|error| Error::invalid(error.to_string()))?;
    let of_inputs = dfschema(&projected)?;
    let physical = create_physical_expr(&logical, &of_inputs, &ExecutionProps::new(), &Default::default())
        .and_then(strict)
        .map_err(|error| Error::of_plan(&error))?;
    let data_type = physical.data_type(&projected).map_err(|error| Error::of_plan(&error))?;
    let nullable = physical.nullable(&projected).map_err(|error| Error::of_plan(&error))?;
    let data_type = delivered(data_type)?;
    let identity = identity(&logical, &projected, &data_type)?;
    let field = Arc::new(Field::new(name, data_type, nullable));
    Ok(Expression { field, inputs, identity, logical, physical })
}

/// A hash of what is computed. Constants are hashed by their bytes: their text could be that of something else.
fn identity(logical: &Expr, inputs: &Schema, made: &DataType) -> Result<u128, Error> {
    let mut constants = Vec::new();
    let shape = logical.clone().transform_up(|part| {
        let Expr::Literal(value, _) = &part else { return Ok(Transformed::no(part)) };
        let data = value.to_array()?.to_data();
        constants.extend(format!("{:?}", bare(&value.data_type())).into_bytes());
        append(&data, &mut constants);
        Ok(Transformed::yes(Expr::Literal(ScalarValue::Null, None)))
    });
    let shape = shape.map_err(|error| Error::of_plan(&error))?.data;
    let types: Vec<_> = inputs.fields().iter().map(|field| (field.name(), bare(field.data_type()))).collect();
    let spelled = format!("{VERSION} {shape:?} {types:?} {:?} {} ", bare(made), constants.len());
    constants.extend(spelled.into_bytes());
    Ok(xxh3_128(&constants))
}

/// Everything that an array consists of but its type.
fn append(data: &ArrayData, out: &mut Vec<u8>) {
    out.extend(
        [data.len(), data.null_count()]
            .map(|count| count as u64)
            .iter()
            .flat_map(|count| count.to_le_bytes()),
    );
    for buffer in data.buffers() {
        out.extend((buffer.len() as u64).to_le_bytes());
        out.extend(buffer.as_slice());
    }
    data.child_data().iter().for_each(|child| append(child, out));
}

/// The type without metadata, which say nothing of values and have no order.
fn bare(data_type: &DataType) -> DataType {
    let field =
        |field: &FieldRef| Arc::new(Field::new(field.name(), bare(field.data_type()), field.is_nullable()));
    match data_type {
        DataType::List(item) => DataType::List(field(item)),
        DataType::LargeList(item) => DataType::LargeList(field(item)),
        DataType::FixedSizeList(item, len) => DataType::FixedSizeList(field(item), *len),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        DataType::Map(entries, sorted) => DataType::Map(field(entries), *sorted),
        other => other.clone(),
    }
}

/// How many parts it has once it is written out: what is said once is computed twice in BETWEEN, COALESCE and the like.
fn expanded(expression: &Expr) -> u64 {
    let mut parts = 0_u64;
    let counted = expression.apply_children(|child| {
        parts = parts.saturating_add(expanded(child));
        Ok(TreeNodeRecursion::Continue)
    });
    let doubles = match expression {
        Expr::Between(_) | Expr::Case(_) => true,
        Expr::ScalarFunction(call) => matches!(call.name(), "coalesce" | "nullif" | "nvl" | "nvl2"),
        _ => false,
    };
    debug_assert!(counted.is_ok(), "nothing above fails");
    parts.saturating_mul(if doubles { 2 } else { 1 }).saturating_add(1)
}

/// What is computed now, without a row, overflows now or never.
fn refuse_overflow(expression: &Expr) -> Result<(), Error> {
    let (mut refused, nothing) = (None, Arc::new(Schema::empty()));
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(Arc::clone(&nothing), Vec::new(), &options);
    let row = row.map_err(|error| Error::invalid(error.to_string()))?;
    let of_nothing = dfschema(&nothing)?;
    let walked = expression.apply(|part| {
        let is_arithmetic = |binary: &datafusion_expr::BinaryExpr| {
            matches!(binary.op, Operator::Plus | Operator::Minus | Operator::Multiply)
        };
        if !matches!(part, Expr::BinaryExpr(binary) if is_arithmetic(binary))
            || !part.column_refs().is_empty()
        {
            return Ok(TreeNodeRecursion::Continue);
        }
        let computed = create_physical_expr(part, &of_nothing, &ExecutionProps::new(), &Default::default())
            .and_then(strict)
            .and_then(|physical| physical.evaluate(&row));
        refused = computed.err().map(|error| Error::of_row(&error));
        Ok(if refused.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Jump })
    });
    walked.map_err(|error| Error::of_plan(&error))?;
    refused.map_or(Ok(()), Err)
}

fn dfschema(schema: &Schema) -> Result<Arc<DFSchema>, Error> {
    DFSchema::try_from(Schema::new(schema.fields().clone()))
        .map(Arc::new)
        .map_err(|error| Error::of_plan(&error))
}

fn plan(text: &str, schema: &Schema) -> Result<Expr, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::invalid(format!("has {} bytes, expected at most {MAX_BYTES}", text.len())));
    }
    let dialect = GenericDialect {};
    let tokens =
        Tokenizer::new(&dialect, text).tokenize().map_err(|error| Error::invalid(error.to_string()))?;
    let count = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).count();
    if count > MAX_TOKENS {
        return Err(Error::invalid(format!("has {count} words and signs, expected at most {MAX_TOKENS}")));
    }
    let mut parser = Parser::new(&dialect).with_recursion_limit(MAX_DEPTH).with_tokens(tokens);
    let parsed = parser.parse_expr_with_alias().map_err(|error| Error::invalid(error.to_string()))?;
    match parser.next_token().token {
        Token::EOF => {}
        more => return Err(Error::invalid(format!("goes on with '{more}' where its end was expected"))),
    }
    let context = Context::new();
    let planner = SqlToRel::new_with_options(
        &context,
        datafusion_sql::planner::ParserOptions {
            // Names are as they are spelled, with or without quotes.
            enable_ident_normalization: false,
            map_string_types_to_utf8view: false,
            ..Default::default()
        },
    );
    let schema = dfschema(schema)?;
    planner
        .sql_to_expr_with_alias(parsed, &schema, &mut PlannerContext::new())
        .map_err(|error| Error::of_plan(&error))
}

/// Not among them: regular expressions, which may be a new and large one for each row, and bits.
const ALLOWED: &[Operator] = &[
    Operator::And,
    Operator::Or,
    Operator::Eq,
    Operator::NotEq,
    Operator::Lt,
    Operator::LtEq,
    Operator::Gt,
    Operator::GtEq,
    Operator::Plus,
    Operator::Minus,
    Operator::Multiply,
    Operator::Divide,
    Operator::Modulo,
    Operator::StringConcat,
    Operator::IsDistinctFrom,
    Operator::IsNotDistinctFrom,
];

/// Only what depends on one row, and on nothing else.
fn refuse_impure(expression: &Expr) -> Result<(), Error> {
    let mut refused = None;
    let walked = expression.apply(|part| {
        let why = match part {
            Expr::Alias(_)
            | Expr::Column(_)
            | Expr::Literal(..)
            | Expr::Like(_)
            | Expr::Not(_)
            | Expr::IsNotNull(_)
            | Expr::IsNull(_)
            | Expr::IsTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsUnknown(_)
            | Expr::IsNotTrue(_)
            | Expr::IsNotFalse(_)
            | Expr::IsNotUnknown(_)
            | Expr::Negative(_)
            | Expr::Between(_)
            | Expr::Case(_)
            | Expr::Cast(_)
            | Expr::TryCast(_)
            | Expr::InList(_) => None,
            Expr::BinaryExpr(binary) if ALLOWED.contains(&binary.op) => None,
            Expr::ScalarFunction(call) if call.func.signature().volatility == Volatility::Immutable => None,
            Expr::ScalarFunction(call) => {
                Some(format!("{}() does not depend on the row alone", call.func.name()))
            }
            other => Some(format!("'{other}' is no expression of one row")),
        };
        refused = why;
        Ok(if refused.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.map_err(|error| Error::of_plan(&error))?;
    refused.map_or(Ok(()), |why| Err(Error::Invalid(why)))
}

/// Integers that overflow are errors, not other numbers.
fn strict(expression: Arc<dyn PhysicalExpr>) -> datafusion_common::Result<Arc<dyn PhysicalExpr>> {
    let strict = expression.transform_up(|part| {
        let Some(binary) = part.downcast_ref::<BinaryExpr>() else { return Ok(Transformed::no(part)) };
        if !matches!(binary.op(), Operator::Plus | Operator::Minus | Operator::Multiply) {
            return Ok(Transformed::no(part));
        }
        Ok(Transformed::yes(Arc::new(binary.clone().with_fail_on_overflow(true)) as Arc<dyn PhysicalExpr>))
    });
    strict.map(|transformed| transformed.data)
}

/// The type that is delivered for a computed one.
fn delivered(data_type: DataType) -> Result<DataType, Error> {
    Ok(match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, value) => *value,
        DataType::Null => return Err(Error::invalid("is always null: CAST it to a type")),
        other => other,
    })
}

/// The words of SQL that are known.
struct Context {
    options: ConfigOptions,
    planners: Vec<Arc<dyn ExprPlanner>>,
}

impl Context {
    fn new() -> Self {
        // The first that has an answer has it.
        let planners: Vec<Arc<dyn ExprPlanner>> = vec![
            Arc::new(OfStructs),
            Arc::new(datafusion_functions::core::planner::CoreFunctionPlanner::default()),
            Arc::new(datafusion_functions::datetime::planner::DatetimeFunctionPlanner),
            Arc::new(datafusion_functions::unicode::planner::UnicodeFunctionPlanner),
        ];
        Self { options: ConfigOptions::default(), planners }
    }
}

/// Fields of structs: `place['city']`, and `place.city`.
#[derive(Debug)]
struct OfStructs;

impl OfStructs {
    fn field(of: Expr, name: ScalarValue) -> Expr {
        functions::fields::function().call(vec![of, Expr::Literal(name, None)])
    }
}

impl ExprPlanner for OfStructs {
    fn plan_field_access(
        &self,
        RawFieldAccessExpr { field_access, expr }: RawFieldAccessExpr,
        _: &DFSchema,
    ) -> datafusion_common::Result<PlannerResult<RawFieldAccessExpr>> {
        match field_access {
            GetFieldAccess::NamedStructField { name } => Ok(PlannerResult::Planned(Self::field(expr, name))),
            GetFieldAccess::ListIndex { .. } | GetFieldAccess::ListRange { .. } => {
                plan_err!(
                    "{expr}[...]: expected the name of a field in quotes; of lists there are no single items, only \
                     list_truncate(list, n)"
                )
            }
        }
    }

    fn plan_compound_identifier(
        &self,
        field: &Field,
        qualifier: Option<&TableReference>,
        names: &[String],
    ) -> datafusion_common::Result<PlannerResult<Vec<Expr>>> {
        let column = Expr::Column(Column::from((qualifier, field)));
        let names = names.iter().map(|name| ScalarValue::from(name.as_str()));
        Ok(PlannerResult::Planned(names.fold(column, Self::field)))
    }
}

impl ContextProvider for Context {
    fn get_table_source(&self, name: TableReference) -> datafusion_common::Result<Arc<dyn TableSource>> {
        plan_err!("'{name}': there are no tables here but the dataset's row")
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        functions::all().get(name.to_lowercase().as_str()).cloned()
    }

    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, _: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        functions::all().keys().map(ToString::to_string).collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}
