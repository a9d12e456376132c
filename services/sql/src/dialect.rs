//! The dialect of expressions.

use std::any::TypeId;

use datafusion_sql::sqlparser::{
    ast::Expr,
    dialect::{Dialect, GenericDialect, Precedence},
    keywords::Keyword,
    parser::{Parser, ParserError},
    tokenizer::Token,
};

/// The generic dialect, with the precedence of PostgreSQL and DuckDB.
///
/// - `IS [NOT] DISTINCT FROM` binds as `IS NULL` does. The parser reads the longest expression as its right side:
///   `a IS DISTINCT FROM b AND c` would be `a IS DISTINCT FROM (b AND c)`.
/// - `LIKE`, `IN` and `BETWEEN` bind tighter than comparisons: `a = b IN (c)` is `a = (b IN (c))`.
/// - `||` binds less tight than `+`.
#[derive(Debug)]
pub(crate) struct ExpressionDialect;

/// Implements methods without arguments that return a boolean, as [`GenericDialect`] does.
macro_rules! as_generic {
    ($($method:ident,)*) => {
        $(fn $method(&self) -> bool {
            GenericDialect.$method()
        })*
    };
}

impl Dialect for ExpressionDialect {
    /// The parser decides parts of the syntax by the type of the dialect.
    fn dialect(&self) -> TypeId {
        GenericDialect.dialect()
    }

    fn prec_value(&self, precedence: Precedence) -> u8 {
        match precedence {
            // Between `IS` and `LIKE`.
            Precedence::Eq => 18,
            Precedence::Like => GenericDialect.prec_value(Precedence::Between),
            other => GenericDialect.prec_value(other),
        }
    }

    fn get_next_precedence(&self, parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        let is_concat = parser.peek_token_ref().token == Token::StringConcat;
        // Between `BETWEEN` and `+`.
        is_concat.then(|| Ok(self.prec_value(Precedence::Caret)))
    }

    fn parse_infix(&self, parser: &mut Parser<'_>, left: &Expr, _: u8) -> Option<Result<Expr, ParserError>> {
        let is_negated =
            parser.parse_keywords(&[Keyword::IS, Keyword::NOT, Keyword::DISTINCT, Keyword::FROM]);
        if !is_negated && !parser.parse_keywords(&[Keyword::IS, Keyword::DISTINCT, Keyword::FROM]) {
            return None;
        }
        let right = parser.parse_subexpr(self.prec_value(Precedence::Is));
        let distinct = if is_negated { Expr::IsNotDistinctFrom } else { Expr::IsDistinctFrom };
        Some(right.map(|right| distinct(Box::new(left.clone()), Box::new(right))))
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        GenericDialect.is_identifier_part(ch)
    }

    as_generic! {
        supports_unicode_string_literal,
        supports_partition_by_after_order_by,
        supports_array_join_syntax,
        supports_group_by_expr,
        supports_group_by_with_modifier,
        supports_left_associative_joins_without_parens,
        supports_connect_by,
        supports_match_recognize,
        supports_pipe_operator,
        supports_start_transaction_modifier,
        supports_window_function_null_treatment_arg,
        supports_dictionary_syntax,
        supports_window_clause_named_window_reference,
        supports_parenthesized_set_variables,
        supports_select_wildcard_except,
        support_map_literal_syntax,
        allow_extract_custom,
        allow_extract_single_quotes,
        supports_extract_comma_syntax,
        supports_create_view_comment_syntax,
        supports_parens_around_table_factor,
        supports_values_as_table_factor,
        supports_create_index_with_clause,
        supports_explain_with_utility_options,
        supports_limit_comma,
        supports_update_order_by,
        supports_from_first_select,
        supports_projection_trailing_commas,
        supports_asc_desc_in_column_definition,
        supports_try_convert,
        supports_bitwise_shift_operators,
        supports_comment_on,
        supports_load_extension,
        supports_named_fn_args_with_assignment_operator,
        supports_struct_literal,
        supports_empty_projections,
        supports_nested_comments,
        supports_multiline_comment_hints,
        supports_user_host_grantee,
        supports_string_escape_constant,
        supports_array_typedef_with_brackets,
        supports_match_against,
        supports_set_names,
        supports_comma_separated_set_assignments,
        supports_filter_during_aggregation,
        supports_select_wildcard_exclude,
        supports_data_type_signed_suffix,
        supports_interval_options,
        supports_quote_delimited_string,
        supports_select_wildcard_replace,
        supports_select_wildcard_ilike,
        supports_select_wildcard_rename,
        supports_optimize_table,
        supports_install,
        supports_detach,
        supports_prewhere,
        supports_with_fill,
        supports_limit_by,
        supports_interpolate,
        supports_settings,
        supports_select_format,
        supports_comment_optimizer_hint,
        supports_constraint_keyword_without_name,
        supports_key_column_option,
        supports_comma_separated_trim,
        supports_cte_without_as,
        supports_select_item_multi_column_alias,
        supports_xml_expressions,
    }
}

#[cfg(test)]
mod tests;
