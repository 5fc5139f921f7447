//! What a query reaches: the tables, views, functions and types on which its meaning depends, however far away.
//!
//! It walks the analysed query, the rules of views, the bodies of SQL functions, the expressions of domains, defaults,
//! generated columns and policies. Of a function in another language only the text is known: each name in it that stands for
//! a function or a table is taken to be reached. What PostgreSQL itself brings is not listed: it means the same on every
//! server of a major version.

use crate::domain::tokens::{Token, tokens};
use crate::postgres::author::Author;
use crate::postgres::canonical::{self, each, is};
use crate::postgres::query::Select;
use crate::postgres::{quote, role, settings, spi, subtransaction};
use pgrx::{pg_guard, pg_sys};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;

/// Something that a query's meaning depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// `query`, `view`, `table`, `function`, `type`, `collation`, `search_path`.
    pub kind: String,
    /// With its schema; empty for the query itself.
    pub name: String,
    /// What must stay the same, as text that is the same on every server.
    pub definition: String,
}

impl Part {
    fn new(kind: &str, name: impl Into<String>, definition: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), name: name.into(), definition: definition.into() }
    }
}

/// Columns of a table, by their numbers; 0 is all of them.
type Columns = BTreeSet<i16>;

#[derive(Default)]
struct Reach {
    relations: BTreeMap<u32, Columns>,
    functions: BTreeSet<u32>,
    types: BTreeSet<u32>,
    collations: BTreeSet<u32>,
    /// What was found and not entered yet.
    pending: Vec<Object>,
    parts: Vec<Part>,
    /// Whether the `search_path` counts when the query runs.
    reads_path: bool,
}

enum Object {
    Relation(pg_sys::Oid),
    Function(pg_sys::Oid),
    Type(pg_sys::Oid),
}

/// The query and all that it reaches, in a fixed order. `path` is the `search_path` that it is read under.
pub fn parts(query: *const pg_sys::Query, path: &str) -> Vec<Part> {
    let mut reach = Reach::default();
    reach.walk(query.cast_mut().cast());
    while let Some(object) = reach.pending.pop() {
        match object {
            Object::Relation(oid) => reach.enter_relation(oid),
            Object::Function(oid) => reach.enter_function(oid, path),
            Object::Type(oid) => reach.enter_type(oid),
        }
    }
    let mut parts = reach.parts;
    for (relation, columns) in &reach.relations {
        parts.extend(table(pg_sys::Oid::from(*relation), columns));
    }
    for collation in &reach.collations {
        parts.extend(collations(pg_sys::Oid::from(*collation)));
    }
    if reach.reads_path {
        parts.push(Part::new("search_path", "", path));
    }
    parts.sort();
    parts.insert(0, Part::new("query", "", canonical::text(query)));
    parts
}

const BY_NAME: &str = "SELECT p.oid FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE p.oid >= 16384
      AND pg_catalog.format('%I.%I(%s)', n.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)) = $1";

/// The definition of a part as this server would write it, were it given as text; `None` for what is no query. The author and
/// the settings are the caller's to see to.
pub fn reworded(part: &Part) -> Option<String> {
    match part.kind.as_str() {
        "query" | "view" => {
            let select = Select::read(&part.definition).ok()?;
            Some(canonical::text(select.analysed()))
        }
        "function" => {
            let found = in_catalog(|| {
                let oid = spi::latest(BY_NAME, &[part.name.as_str().into()], |row| row.at::<pg_sys::Oid>(1));
                let oid = oid.into_iter().next()?;
                spi::latest(FUNCTION, &[oid.into()], Function::decode)
                    .into_iter()
                    .next()
                    .map(|found| (oid, found))
            });
            let (oid, function) = found.filter(|(_, function)| function.is_sql)?;
            let body = part.definition.strip_prefix(&function.header)?;
            let queries = Author::Role(function.owner).run(|| unsafe { analysed(oid, body) });
            let texts: Vec<String> = queries.into_iter().map(|query| canonical::text(query)).collect();
            Some(texts.join("; "))
        }
        _ => None,
    }
}

/// Whether PostgreSQL itself brings an object.
pub fn is_builtin(oid: pg_sys::Oid) -> bool {
    u32::from(oid) < pg_sys::FirstNormalObjectId
}

#[pg_guard]
unsafe extern "C-unwind" fn visit_function(function: pg_sys::Oid, reach: *mut c_void) -> bool {
    unsafe { &mut *reach.cast::<Reach>() }.function(function);
    false
}

#[pg_guard]
unsafe extern "C-unwind" fn visit(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    unsafe {
        if node.is_null() {
            return false;
        }
        (*context.cast::<Reach>()).node(node);
        if is(node, pg_sys::NodeTag::T_Query) {
            let flags = pg_sys::QTW_EXAMINE_RTES_BEFORE | pg_sys::QTW_EXAMINE_SORTGROUP;
            return pg_sys::query_tree_walker(node.cast(), Some(visit), context, flags as i32);
        }
        if is(node, pg_sys::NodeTag::T_RangeTblEntry) {
            return false;
        }
        pg_sys::check_functions_in_node(node, Some(visit_function), context);
        pg_sys::expression_tree_walker(node, Some(visit), context)
    }
}

impl Reach {
    fn walk(&mut self, node: *mut pg_sys::Node) {
        unsafe { visit(node, (self as *mut Self).cast()) };
    }

    /// Walks an expression that a catalog holds as text.
    fn walk_stored(&mut self, text: &str) {
        let text = quote::c_string(text);
        self.walk(unsafe { pg_sys::stringToNode(text.as_ptr()).cast() });
    }

    fn function(&mut self, oid: pg_sys::Oid) {
        if oid != pg_sys::InvalidOid && !is_builtin(oid) && self.functions.insert(oid.into()) {
            self.pending.push(Object::Function(oid));
        }
    }

    fn operator(&mut self, oid: pg_sys::Oid) {
        if oid != pg_sys::InvalidOid && !is_builtin(oid) {
            self.function(unsafe { pg_sys::get_opcode(oid) });
        }
    }

    fn relation(&mut self, oid: pg_sys::Oid, columns: impl IntoIterator<Item = i16>) {
        if is_builtin(oid) {
            return;
        }
        let known = self.relations.contains_key(&u32::from(oid));
        self.relations.entry(oid.into()).or_default().extend(columns);
        if !known {
            self.pending.push(Object::Relation(oid));
        }
    }

    fn data_type(&mut self, oid: pg_sys::Oid) {
        if oid != pg_sys::InvalidOid && !is_builtin(oid) && self.types.insert(oid.into()) {
            self.pending.push(Object::Type(oid));
        }
    }

    fn collation(&mut self, oid: pg_sys::Oid) {
        if oid != pg_sys::InvalidOid && !is_builtin(oid) {
            self.collations.insert(oid.into());
        }
    }

    unsafe fn node(&mut self, node: *mut pg_sys::Node) {
        use pg_sys::NodeTag as T;
        unsafe {
            match (*node).type_ {
                T::T_Query => self.tables_of(node.cast()),
                T::T_SortGroupClause => {
                    let clause: *mut pg_sys::SortGroupClause = node.cast();
                    self.operator((*clause).eqop);
                    self.operator((*clause).sortop);
                }
                T::T_Const => self.data_type((*node.cast::<pg_sys::Const>()).consttype),
                T::T_FuncExpr => self.data_type((*node.cast::<pg_sys::FuncExpr>()).funcresulttype),
                T::T_Aggref => self.data_type((*node.cast::<pg_sys::Aggref>()).aggtype),
                T::T_RelabelType => self.data_type((*node.cast::<pg_sys::RelabelType>()).resulttype),
                T::T_CoerceViaIO => self.data_type((*node.cast::<pg_sys::CoerceViaIO>()).resulttype),
                T::T_ArrayCoerceExpr => self.data_type((*node.cast::<pg_sys::ArrayCoerceExpr>()).resulttype),
                T::T_CoerceToDomain => self.data_type((*node.cast::<pg_sys::CoerceToDomain>()).resulttype),
                T::T_RowExpr => self.data_type((*node.cast::<pg_sys::RowExpr>()).row_typeid),
                T::T_CollateExpr => self.collation((*node.cast::<pg_sys::CollateExpr>()).collOid),
                _ => {}
            }
        }
    }

    /// The tables of a query with the columns that it reads.
    unsafe fn tables_of(&mut self, query: *mut pg_sys::Query) {
        unsafe {
            for range in each::<pg_sys::RangeTblEntry>((*query).rtable) {
                if (*range).relid == pg_sys::InvalidOid || (*range).rtekind != pg_sys::RTEKind::RTE_RELATION {
                    continue;
                }
                let selected = selected(query, range);
                let mut columns = Columns::new();
                let mut member = pg_sys::bms_next_member(selected, -1);
                while member >= 0 {
                    columns.insert((member + pg_sys::FirstLowInvalidHeapAttributeNumber) as i16);
                    member = pg_sys::bms_next_member(selected, member);
                }
                self.relation((*range).relid, columns);
            }
        }
    }

    fn enter_relation(&mut self, oid: pg_sys::Oid) {
        for expression in expressions(RELATION_EXPRESSIONS, oid) {
            self.walk_stored(&expression);
        }
        for (type_oid, collation) in column_types(oid) {
            self.data_type(type_oid);
            self.collation(collation);
        }
        if let Some(query) = view_query(oid) {
            self.parts.push(Part::new("view", quote::relation(oid), canonical::text(query)));
            self.walk(query.cast());
        }
    }

    fn enter_type(&mut self, oid: pg_sys::Oid) {
        let found = in_catalog(|| {
            spi::latest(TYPE, &[oid.into()], |row| {
                let part = Part::new("type", row.at::<String>(1), row.at::<String>(2));
                (part, row.at::<Vec<pg_sys::Oid>>(3), row.get::<pg_sys::Oid>(4), row.at::<bool>(5))
            })
        });
        for (part, inner, relation, is_listed) in found {
            inner.into_iter().for_each(|inner| self.data_type(inner));
            relation.into_iter().for_each(|relation| self.relation(relation, [0]));
            if is_listed {
                self.parts.push(part);
            }
        }
        for expression in expressions(TYPE_EXPRESSIONS, oid) {
            self.walk_stored(&expression);
        }
    }

    fn enter_function(&mut self, oid: pg_sys::Oid, path: &str) {
        let Body { function, queries, path } = body_of(oid, path);
        let Some(function) = function else { return };
        function.inner.iter().for_each(|inner| self.function(*inner));
        function.types.iter().for_each(|inner| self.data_type(*inner));
        function.stored.iter().for_each(|expression| self.walk_stored(expression));
        self.reads_path |= function.source.is_some() && function.path.is_none();
        let body = match (queries, &function.source) {
            (Some(queries), _) => queries
                .into_iter()
                .map(|query| {
                    self.walk(query.cast());
                    canonical::text(query)
                })
                .collect::<Vec<_>>()
                .join("; "),
            (None, Some(source)) => self.enter_names(source, &path),
            (None, None) => String::new(),
        };
        let definition = format!("{} {body}", function.header);
        self.parts.push(Part::new("function", function.name, definition.trim()));
    }

    /// A body of which only the text is known.
    fn enter_names(&mut self, source: &str, path: &str) -> String {
        let tokens = tokens(source);
        let names: Vec<String> = tokens
            .iter()
            .filter_map(|token| match token {
                Token::Name(name) => Some(name.clone()),
                Token::Other(_) => None,
            })
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let found = named(names, path);
        for (is_function, oid) in found {
            match is_function {
                true => self.function(oid),
                false => self.relation(oid, [0]),
            }
        }
        tokens.iter().map(Token::text).collect::<Vec<_>>().join(" ")
    }
}

/// The query of a view or of a materialized view.
pub fn view_query(oid: pg_sys::Oid) -> Option<*mut pg_sys::Query> {
    unsafe {
        let relation = pg_sys::relation_open(oid, pg_sys::AccessShareLock as i32);
        let rules = (*relation).rd_rules;
        let kind = (*(*relation).rd_rel).relkind as u8;
        let mut found = None;
        if !rules.is_null() && [pg_sys::RELKIND_VIEW, pg_sys::RELKIND_MATVIEW].contains(&kind) {
            let rules = std::slice::from_raw_parts((*rules).rules, (*rules).numLocks as usize);
            let rule = rules.iter().find(|rule| (***rule).event == pg_sys::CmdType::CMD_SELECT);
            found = rule.map(|rule| {
                pg_sys::copyObjectImpl(pg_sys::list_nth((**rule).actions, 0).cast_const()).cast()
            });
        }
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        found
    }
}

/// Reads the catalog, in statements that mean the same whatever the `search_path` of the query that is looked at.
pub fn in_catalog<T>(f: impl FnOnce() -> T) -> T {
    settings::pinned(|| role::as_ledger(f))
}

/// Functions (true) and tables (false) of somebody's own that names may stand for.
pub fn named(names: Vec<String>, path: &str) -> Vec<(bool, pg_sys::Oid)> {
    settings::for_query("UTC", path, || {
        role::as_ledger(|| spi::latest(NAMED, &[names.into()], |row| (row.at(1), row.at(2))))
    })
}

#[cfg(feature = "pg15")]
unsafe fn selected(_query: *mut pg_sys::Query, range: *mut pg_sys::RangeTblEntry) -> *mut pg_sys::Bitmapset {
    unsafe { (*range).selectedCols }
}

#[cfg(not(feature = "pg15"))]
unsafe fn selected(query: *mut pg_sys::Query, range: *mut pg_sys::RangeTblEntry) -> *mut pg_sys::Bitmapset {
    unsafe {
        match (*range).perminfoindex {
            0 => std::ptr::null_mut(),
            index => {
                let info: *mut pg_sys::RTEPermissionInfo =
                    pg_sys::list_nth((*query).rteperminfos, index as i32 - 1).cast();
                (*info).selectedCols
            }
        }
    }
}

unsafe extern "C-unwind" {
    fn prepare_sql_fn_parse_info(
        function: pg_sys::HeapTuple,
        call: *mut pg_sys::Node,
        collation: pg_sys::Oid,
    ) -> *mut c_void;
    fn sql_fn_parser_setup(state: *mut pg_sys::ParseState, info: *mut c_void);
}

#[pg_guard]
unsafe extern "C-unwind" fn set_up(state: *mut pg_sys::ParseState, info: *mut c_void) {
    unsafe { sql_fn_parser_setup(state, info) };
}

/// The queries of an SQL function's text, in which its parameters stand by their names.
unsafe fn analysed(function: pg_sys::Oid, source: &str) -> Vec<*mut pg_sys::Query> {
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::PROCOID as i32,
            pg_sys::Datum::from(function),
        );
        let info = prepare_sql_fn_parse_info(tuple, std::ptr::null_mut(), pg_sys::InvalidOid);
        let text = quote::c_string(source);
        let queries = each::<pg_sys::RawStmt>(pg_sys::pg_parse_query(text.as_ptr()))
            .map(|raw| {
                pg_sys::parse_analyze_withcb(raw, text.as_ptr(), Some(set_up), info, std::ptr::null_mut())
            })
            .collect();
        pg_sys::ReleaseSysCache(tuple);
        queries
    }
}

/// A function of somebody's own, as far as it can be read.
pub struct Body {
    /// `None` if it was dropped.
    pub function: Option<Function>,
    /// The queries of an SQL function's body; `None` where it has none, or they cannot be analysed by themselves.
    pub queries: Option<Vec<*mut pg_sys::Query>>,
    /// The `search_path` under which its text is read.
    pub path: String,
}

/// Reads a function. `path` is the `search_path` of whoever calls it.
///
/// To read the constants in a body that is analysed when it is called may run checks of domains, as whoever wrote it: it may
/// only share its name with what is called.
pub fn body_of(oid: pg_sys::Oid, path: &str) -> Body {
    let found = in_catalog(|| spi::latest(FUNCTION, &[oid.into()], Function::decode));
    let Some(function) = found.into_iter().next() else {
        return Body { function: None, queries: None, path: path.to_owned() };
    };
    let path = function.path.clone().unwrap_or_else(|| settings::with_temporary_last(path));
    let queries = match (&function.source, &function.body) {
        // It was analysed when the function was made.
        (_, Some(body)) => {
            let body = quote::c_string(body);
            let mut queries = vec![];
            queries_in(unsafe { pg_sys::stringToNode(body.as_ptr()).cast() }, &mut queries);
            Some(queries)
        }
        (Some(source), None) if function.is_sql => {
            let analyse = || settings::for_query("UTC", &path, || unsafe { analysed(oid, source) });
            subtransaction::attempt(|| Author::Role(function.owner).run(analyse)).ok()
        }
        _ => None,
    };
    Body { function: Some(function), queries, path }
}

/// Queries in lists of any depth.
fn queries_in(node: *mut pg_sys::Node, found: &mut Vec<*mut pg_sys::Query>) {
    unsafe {
        if is(node, pg_sys::NodeTag::T_List) {
            each(node.cast()).for_each(|inner| queries_in(inner, found));
        } else if is(node, pg_sys::NodeTag::T_Query) {
            found.push(node.cast());
        }
    }
}

/// A function as the catalog has it.
pub struct Function {
    pub name: String,
    /// All that counts but the body.
    header: String,
    is_sql: bool,
    pub source: Option<String>,
    body: Option<String>,
    /// Expressions, such as the defaults of its arguments.
    pub stored: Vec<String>,
    /// Its own `search_path`.
    path: Option<String>,
    /// Functions that an aggregate is made of.
    pub inner: Vec<pg_sys::Oid>,
    types: Vec<pg_sys::Oid>,
    owner: pg_sys::Oid,
}

impl Function {
    fn decode(row: &spi::Row) -> Self {
        Self {
            name: row.at(1),
            header: row.at(2),
            is_sql: row.at(3),
            source: row.get(4),
            body: row.get(5),
            stored: row.get::<String>(6).into_iter().collect(),
            path: row.get(7),
            inner: row.at(8),
            types: row.at(9),
            owner: row.at(10),
        }
    }
}

const FUNCTION: &str = include_str!("../../sql/query/reach_function.sql");
const TYPE: &str = include_str!("../../sql/query/reach_type.sql");
const TABLE: &str = include_str!("../../sql/query/reach_table.sql");
const NAMED: &str = include_str!("../../sql/query/reach_named.sql");

/// Expressions that count whenever a table is read: policies, and generated columns that are computed then.
const RELATION_EXPRESSIONS: &str = "SELECT d.adbin::pg_catalog.text FROM pg_catalog.pg_attrdef d
    JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
    WHERE d.adrelid = $1 AND a.attgenerated = 'v'
    UNION ALL
    SELECT p.polqual::pg_catalog.text FROM pg_catalog.pg_policy p
    JOIN pg_catalog.pg_class c ON c.oid = p.polrelid AND c.relrowsecurity
    WHERE p.polrelid = $1 AND p.polcmd IN ('r', '*') AND p.polqual IS NOT NULL";

const TYPE_EXPRESSIONS: &str = "SELECT c.conbin::pg_catalog.text FROM pg_catalog.pg_constraint c
    WHERE c.contypid = $1 AND c.conbin IS NOT NULL";

fn expressions(sql: &'static str, oid: pg_sys::Oid) -> Vec<String> {
    in_catalog(|| spi::latest(sql, &[oid.into()], |row| row.at(1)))
}

const COLUMN_TYPES: &str = "SELECT a.atttypid, a.attcollation FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped";

fn column_types(oid: pg_sys::Oid) -> Vec<(pg_sys::Oid, pg_sys::Oid)> {
    in_catalog(|| spi::latest(COLUMN_TYPES, &[oid.into()], |row| (row.at(1), row.at(2))))
}

/// A table with the columns that are read of it; nothing for a view, which its text tells all about.
fn table(oid: pg_sys::Oid, columns: &Columns) -> Option<Part> {
    let columns: Vec<i64> = columns.iter().map(|column| i64::from(*column)).collect();
    let args = [oid.into(), columns.into()];
    let found = in_catalog(|| spi::latest(TABLE, &args, |row| row.get::<String>(1)));
    let definition = found.into_iter().next().flatten()?;
    Some(Part::new("table", quote::relation(oid), definition))
}

const COLLATION: &str = "SELECT pg_catalog.format('%I.%I', n.nspname, c.collname),
        pg_catalog.concat_ws(' ', c.collprovider, c.collisdeterministic,
                             pg_catalog.to_jsonb(c) - '{oid,collname,collnamespace,collowner,collversion}'::pg_catalog.text[])
    FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = $1";

fn collations(oid: pg_sys::Oid) -> Option<Part> {
    let decode = |row: &spi::Row| Part::new("collation", row.at::<String>(1), row.at::<String>(2));
    in_catalog(|| spi::latest(COLLATION, &[oid.into()], decode)).into_iter().next()
}
