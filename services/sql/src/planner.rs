//! Names that an expression can use: the functions of this crate, and fields of structs.

use std::sync::Arc;

use arrow_schema::{DataType, Field};
use datafusion_common::{Column, DFSchema, ScalarValue, TableReference, config::ConfigOptions, plan_err};
use datafusion_expr::{
    AggregateUDF, Expr, GetFieldAccess, HigherOrderUDF, ScalarUDF, TableSource, WindowUDF,
    planner::{ContextProvider, ExprPlanner, PlannerResult, RawFieldAccessExpr},
};

use crate::functions;

/// Functions and name resolution for DataFusion's SQL planner.
pub(crate) struct Context {
    options: ConfigOptions,
    planners: Vec<Arc<dyn ExprPlanner>>,
}

impl Context {
    pub(crate) fn new() -> Self {
        // The first planner with a result is used.
        let planners: Vec<Arc<dyn ExprPlanner>> = vec![
            Arc::new(StructFieldPlanner),
            Arc::new(datafusion_functions::core::planner::CoreFunctionPlanner::default()),
            Arc::new(datafusion_functions::datetime::planner::DatetimeFunctionPlanner),
            Arc::new(datafusion_functions::unicode::planner::UnicodeFunctionPlanner),
        ];
        let mut options = ConfigOptions::default();
        // Without it, a timestamp with a zone is planned without one.
        options.execution.time_zone = Some("+00:00".to_owned());
        Self { options, planners }
    }
}

/// Plans access to struct fields: `place['city']` and `place.city`.
#[derive(Debug)]
struct StructFieldPlanner;

impl StructFieldPlanner {
    fn field(of: Expr, name: ScalarValue) -> Expr {
        functions::get_field::function().call(vec![of, Expr::Literal(name, None)])
    }
}

impl ExprPlanner for StructFieldPlanner {
    fn plan_field_access(
        &self,
        RawFieldAccessExpr { field_access, expr }: RawFieldAccessExpr,
        _: &DFSchema,
    ) -> datafusion_common::Result<PlannerResult<RawFieldAccessExpr>> {
        match field_access {
            GetFieldAccess::NamedStructField { name } => Ok(PlannerResult::Planned(Self::field(expr, name))),
            GetFieldAccess::ListIndex { .. } | GetFieldAccess::ListRange { .. } => {
                plan_err!(
                    "{expr}[...]: expected a field name in quotes; single list items are not supported, use \
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
        plan_err!("'{name}': tables are not supported, only columns of the dataset")
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

    /// Names that DataFusion suggests if a function with OVER is unknown. Without names, its error asks to report a bug in DataFusion.
    fn udwf_names(&self) -> Vec<String> {
        self.udf_names()
    }
}
