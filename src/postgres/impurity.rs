//! What in a query, and in everything that it reaches, keeps it from being a function of its window.
//!
//! It walks the analysed query, the queries of views, the bodies of SQL functions, policies, generated columns, and what the
//! target fills in by itself. Of functions in other languages their declared volatility and the words of their text count.

use crate::domain::purity::{self, Rule, Volatility};
use crate::domain::tokens::{Token, tokens};
use crate::error::Result;
use crate::postgres::canonical::{each, is};
use crate::postgres::query::Select;
use crate::postgres::reach::{self, Body, Object, Reading, in_catalog, is_builtin};
use crate::postgres::restriction::{self, BOTH, Bounds, HIGH, LOW, Scope, constant_text};
use crate::postgres::table::{Table, with_partitions};
use crate::postgres::{quote, settings, spi, walk};
use pgrx::pg_sys;
use pgrx::pg_sys::NodeTag as T;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{CStr, c_char};
use std::mem::{replace, take};
use std::rc::Rc;

type Query = *mut pg_sys::Query;

/// Where a query's rows go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    pub target: pg_sys::Oid,
    pub slice_column: String,
    /// The column that the ledger fills.
    pub stamp_column: Option<String>,
    /// Whether it may read its own target.
    pub depends_on_past: bool,
}

/// A rule that is broken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    pub rule: Rule,
    pub object: String,
    /// Where it stands, and through what that is reached.
    pub place: String,
}

/// Looks at a query that was read under a `search_path`, in the order of the rules. Its author and settings are the caller's
/// to see to.
pub fn look(select: &Select, path: &str, subject: &Subject) -> Result<Vec<Found>> {
    let table = settings::pinned(|| Table::look_only(subject.target))?;
    let stamp = subject.stamp_column.as_deref();
    let given: Vec<&str> = table.filled(stamp).into_iter().take(select.width()).collect();
    let slice = given.iter().position(|name| *name == subject.slice_column);
    let filled: BTreeSet<&str> = given.into_iter().chain(stamp).collect();
    let reading = Reading::called(path);
    let mut looker = Looker {
        family: family(subject.target),
        depends_on_past: subject.depends_on_past,
        scope: Scope::new(vec![BOTH, BOTH], reading.clone()),
        reading,
        text: Some(select.text().to_string_lossy().into()),
        places: vec![],
        found: BTreeMap::new(),
        tables: vec![],
        seen: HashSet::new(),
        sets: HashSet::new(),
        is_driven: false,
    };
    let query = select.query();
    looker.query(query, &[], slice, false);
    looker.bounds_of(query);
    looker.target(&table, &filled);
    Ok(looker.answer())
}

/// How the place starts of what is found in a column of the target.
pub fn place_of_column(column: &str, target: &str) -> String {
    format!("column {} of {target}", quote::identifier(column))
}

/// A table with those that it is a part of and its own parts.
fn family(relation: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    const FAMILY: &str = concat!(
        "SELECT a.relid::pg_catalog.oid FROM pg_catalog.pg_partition_ancestors($1::pg_catalog.oid) a UNION SELECT t.relid FROM ",
        with_partitions!("$1"),
        " t UNION SELECT $1"
    );
    in_catalog(|| spi::latest(FAMILY, &[relation.into()], |row| row.at(1)))
}

/// What was looked at already: a function, a view, a CTE, with how it is bounded.
type Seen = (usize, Vec<Bounds>, Vec<Bounds>, Option<usize>);

struct Looker {
    family: Vec<pg_sys::Oid>,
    depends_on_past: bool,
    scope: Scope,
    reading: Reading,
    /// The text of what is looked at, in which its nodes have their places.
    text: Option<Rc<str>>,
    /// Through what it is reached.
    places: Vec<String>,
    /// By rule, object and the innermost place, with the whole way to it.
    found: BTreeMap<(Rule, String, String), String>,
    /// Tables that are read: how the rows are bounded, the name, and where.
    tables: Vec<(Bounds, String, (String, String))>,
    seen: HashSet<Seen>,
    /// Operands of ANY and ALL: whether a value is a member does not depend on their order.
    sets: HashSet<usize>,
    /// Whether something else than a table gives the window's rows.
    is_driven: bool,
}

/// The name of a function with the types of its arguments, each with its schema unless PostgreSQL brings it.
fn signature(function: pg_sys::Oid) -> String {
    settings::pinned(|| unsafe { text_of(pg_sys::format_procedure(function)) })
}

fn volatility(function: pg_sys::Oid) -> Volatility {
    match unsafe { pg_sys::func_volatile(function) } as u8 {
        pg_sys::PROVOLATILE_IMMUTABLE => Volatility::Immutable,
        pg_sys::PROVOLATILE_STABLE => Volatility::Stable,
        _ => Volatility::Volatile,
    }
}

fn category(type_oid: pg_sys::Oid) -> u8 {
    let (mut category, mut preferred): (c_char, bool) = (0, false);
    unsafe { pg_sys::get_type_category_preferred(type_oid, &mut category, &mut preferred) };
    category as u8
}

/// Whether a type holds moments: a date or time, a range or an array of such.
fn is_temporal(type_oid: pg_sys::Oid) -> bool {
    match category(type_oid) {
        b'D' | b'R' => true,
        b'A' => {
            let element = unsafe { pg_sys::get_element_type(type_oid) };
            element != pg_sys::InvalidOid && is_temporal(element)
        }
        _ => false,
    }
}

fn is_float(type_oid: pg_sys::Oid) -> bool {
    [pg_sys::FLOAT4OID, pg_sys::FLOAT8OID].contains(&unsafe { pg_sys::getBaseType(type_oid) })
}

unsafe fn text_of(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// The text that a literal stands for.
unsafe fn value_of(literal: &str) -> Option<String> {
    let sql = quote::c_string(&format!("SELECT {literal}"));
    unsafe {
        let raw = each::<pg_sys::RawStmt>(pg_sys::pg_parse_query(sql.as_ptr())).next()?;
        let select: *mut pg_sys::SelectStmt = (*raw).stmt.cast();
        let target = each::<pg_sys::ResTarget>((*select).targetList).next()?;
        let constant: *mut pg_sys::A_Const = (*target).val.cast();
        if !is(constant.cast(), T::T_A_Const) || (*constant).val.node.type_ != T::T_String {
            return None;
        }
        Some(text_of((*constant).val.sval.sval))
    }
}

unsafe fn function_name(function: pg_sys::Oid) -> String {
    unsafe { text_of(pg_sys::get_func_name(function)) }
}

/// Whether a state that an aggregate collects its rows in keeps their order.
fn keeps_order(aggregate: pg_sys::Oid) -> bool {
    const STATE: &str =
        "SELECT a.aggtranstype FROM pg_catalog.pg_aggregate a WHERE a.aggfnoid = $1::pg_catalog.oid";
    let found: Vec<pg_sys::Oid> = in_catalog(|| spi::latest(STATE, &[aggregate.into()], |row| row.at(1)));
    found.into_iter().any(|state| {
        [pg_sys::JSONOID, pg_sys::JSONBOID].contains(&state) || matches!(category(state), b'A' | b'S' | b'C')
    })
}

fn reads_table(query: Query) -> bool {
    let is_table = |node: *mut pg_sys::Node| unsafe {
        is(node, T::T_RangeTblEntry)
            && (*node.cast::<pg_sys::RangeTblEntry>()).rtekind == pg_sys::RTEKind::RTE_RELATION
    };
    unsafe { walk::any(query.cast(), pg_sys::QTW_EXAMINE_RTES_BEFORE, is_table) }
}

/// The numbers of the parameters that a query takes.
fn parameters(query: Query) -> BTreeSet<i32> {
    let mut used = BTreeSet::new();
    unsafe {
        walk::any(query.cast(), 0, |node| {
            let parameter: *mut pg_sys::Param = node.cast();
            if is(node, T::T_Param) && (*parameter).paramkind == pg_sys::ParamKind::PARAM_EXTERN {
                used.insert((*parameter).paramid);
            }
            false
        });
    }
    used
}

impl Looker {
    fn here(&self) -> (String, String) {
        match self.places.last() {
            Some(last) => (last.clone(), self.places.join(" > ")),
            None => ("query".to_owned(), "query".to_owned()),
        }
    }

    fn report(&mut self, rule: Rule, object: impl Into<String>) {
        let here = self.here();
        self.report_at(rule, object.into(), here);
    }

    fn report_at(&mut self, rule: Rule, object: String, (place, way): (String, String)) {
        let known = self.found.entry((rule, object, place)).or_insert_with(|| way.clone());
        if (way.len(), &way) < (known.len(), known) {
            *known = way;
        }
    }

    /// Looks at something that stands by itself, in a place of its own.
    fn within(
        &mut self,
        place: String,
        parameters: Vec<Bounds>,
        reading: Reading,
        text: Option<Rc<str>>,
        f: impl FnOnce(&mut Self),
    ) {
        self.places.push(place);
        let scope = replace(&mut self.scope, Scope::new(parameters, reading.clone()));
        let reading = replace(&mut self.reading, reading);
        let text = replace(&mut self.text, text);
        f(self);
        self.text = text;
        self.reading = reading;
        self.scope = scope;
        self.places.pop();
    }

    fn walk(&mut self, node: *mut pg_sys::Node) {
        let mut pending = vec![node];
        while let Some(node) = pending.pop() {
            if !node.is_null() && unsafe { self.node(node) } {
                pending.extend(unsafe { walk::children(node, 0) }.into_iter().rev());
            }
        }
    }

    fn walk_stored(&mut self, text: &str) {
        let text = quote::c_string(text);
        self.walk(unsafe { pg_sys::stringToNode(text.as_ptr()).cast() });
    }

    /// Looks at one query. `slice` is the place of the column that becomes the slice column.
    fn query(&mut self, query: Query, demanded: &[Bounds], slice: Option<usize>, is_test: bool) {
        unsafe {
            for cte in each::<pg_sys::CommonTableExpr>((*query).cteList) {
                self.require_select((*cte).ctequery.cast());
            }
            if !self.require_select(query) {
                return;
            }
            // Queries in queries call this again.
            pg_sys::check_stack_depth();
            self.scope.enter(query, demanded);
            self.order(query, is_test);
            let slice = slice.and_then(|place| self.slice(query, place));
            for number in restriction::read(query) {
                let range = restriction::range_of(query, number);
                let slice = slice.as_ref().and_then(|(ranges, column)| {
                    (ranges.contains(&number) && *column > 0).then(|| *column as usize - 1)
                });
                self.range(range, number, slice);
            }
            #[cfg(feature = "pg18")]
            for range in each::<pg_sys::RangeTblEntry>((*query).rtable) {
                if (*range).rtekind == pg_sys::RTEKind::RTE_GROUP {
                    self.walk((*range).groupexprs.cast());
                }
            }
            let flags = pg_sys::QTW_IGNORE_RANGE_TABLE | pg_sys::QTW_IGNORE_CTE_SUBQUERIES;
            walk::children(query.cast(), flags).into_iter().for_each(|child| self.walk(child));
            self.scope.leave();
        }
    }

    unsafe fn require_select(&mut self, query: Query) -> bool {
        use pg_sys::CmdType::{CMD_DELETE, CMD_INSERT, CMD_MERGE, CMD_SELECT, CMD_UPDATE};
        let what = match unsafe { (*query).commandType } {
            CMD_SELECT => return true,
            CMD_INSERT => "INSERT",
            CMD_UPDATE => "UPDATE",
            CMD_DELETE => "DELETE",
            CMD_MERGE => "MERGE",
            _ => "a command",
        };
        self.report(Rule::Writes, what);
        false
    }

    /// Where the slice column comes from: the ranges and the column of them. Whether the window bounds it, and not another one.
    unsafe fn slice(&mut self, query: Query, place: usize) -> Option<(Vec<i32>, i16)> {
        unsafe {
            let arms = restriction::arms(query);
            if !arms.is_empty() {
                return Some((arms, place as i16 + 1));
            }
            let entry = *restriction::entries(query).get(place)?;
            let column = self.scope.column_of((*entry).expr.cast())?;
            let is_wrong = self.scope.bounds_of_expression((*entry).expr.cast()) != BOTH
                && self.scope.bounds_of_range(column.range) == BOTH;
            if let (true, Some(relation)) = (is_wrong, self.scope.relation(column.range, 0)) {
                let table = quote::relation(relation);
                let name = pg_sys::get_attname(relation, column.attribute, true);
                let object = match column.attribute {
                    0 => table,
                    _ => format!("{table}.{}", quote::identifier(&text_of(name))),
                };
                if pg_sys::get_rel_relkind(relation) as u8 != pg_sys::RELKIND_VIEW {
                    self.report(Rule::WrongColumn, object);
                }
            }
            Some((vec![column.range], column.attribute))
        }
    }

    /// What depends on an order that nothing gives, and on what others hold.
    unsafe fn order(&mut self, query: Query, is_test: bool) {
        unsafe {
            let is_one_row = (*query).setOperations.is_null()
                && (*query).groupClause.is_null()
                && (*query).groupingSets.is_null()
                && !(*query).hasTargetSRFs
                && ((*query).hasAggs || (*(*query).jointree).fromlist.is_null());
            // LIMIT ALL is a NULL.
            let is_absent = |node: *mut pg_sys::Node| {
                node.is_null() || (is(node, T::T_Const) && (*node.cast::<pg_sys::Const>()).constisnull)
            };
            if (*query).sortClause.is_null() && !is_one_row && !is_test {
                if !is_absent((*query).limitCount) {
                    self.report(Rule::LimitWithoutOrder, "LIMIT");
                } else if !is_absent((*query).limitOffset) {
                    self.report(Rule::LimitWithoutOrder, "OFFSET");
                }
            }
            let skips =
                |mark: *mut pg_sys::RowMarkClause| (*mark).waitPolicy == pg_sys::LockWaitPolicy::LockWaitSkip;
            if each::<pg_sys::RowMarkClause>((*query).rowMarks).any(skips) {
                self.report(Rule::Transaction, purity::SKIP_LOCKED);
            }
            if (*query).hasDistinctOn {
                let distinct: Vec<u32> = each::<pg_sys::SortGroupClause>((*query).distinctClause)
                    .map(|clause| (*clause).tleSortGroupRef)
                    .collect();
                let sorted = each::<pg_sys::SortGroupClause>((*query).sortClause).count();
                let gives_more = restriction::entries(query)
                    .iter()
                    .any(|entry| !distinct.contains(&(**entry).ressortgroupref));
                if sorted <= distinct.len() && gives_more {
                    self.report(Rule::DistinctOnWithoutOrder, "DISTINCT ON");
                }
            }
        }
    }

    unsafe fn range(&mut self, range: *mut pg_sys::RangeTblEntry, number: i32, slice: Option<usize>) {
        use pg_sys::RTEKind::{RTE_CTE, RTE_FUNCTION, RTE_RELATION, RTE_SUBQUERY, RTE_TABLEFUNC, RTE_VALUES};
        unsafe {
            let width = each::<pg_sys::Node>((*(*range).eref).colnames).count();
            let demanded = self.scope.demanded(number, width);
            match (*range).rtekind {
                RTE_RELATION => {
                    if !(*range).tablesample.is_null() {
                        self.report(Rule::Sample, quote::relation((*range).relid));
                    }
                    let bounds = self.scope.bounds_of_range(number);
                    self.relation((*range).relid, Some(bounds), &demanded, slice);
                }
                RTE_SUBQUERY => self.query((*range).subquery, &demanded, slice, false),
                RTE_CTE if !(*range).self_reference => {
                    // The scope is the looker's own: it is lent for the CTE.
                    let mut scope = take(&mut self.scope);
                    scope.within_cte(range, |inner, cte| {
                        let demanded = if (*cte).cterecursive { vec![] } else { demanded };
                        let query: Query = (*cte).ctequery.cast();
                        if self.seen.insert((query as usize, vec![], demanded.clone(), slice)) {
                            self.scope = take(inner);
                            self.query(query, &demanded, slice, false);
                            *inner = take(&mut self.scope);
                        }
                    });
                    self.scope = scope;
                }
                RTE_FUNCTION => {
                    self.is_driven |= self.scope.bounds_of_range(number) == BOTH;
                    let functions: Vec<*mut pg_sys::RangeTblFunction> = each((*range).functions).collect();
                    // Of several, PostgreSQL moves no condition inside.
                    let demanded = if functions.len() == 1 { &demanded[..] } else { &[] };
                    for function in functions {
                        let call = (*function).funcexpr;
                        if is(call, T::T_FuncExpr) {
                            self.call(call.cast(), demanded);
                            self.walk((*call.cast::<pg_sys::FuncExpr>()).args.cast());
                        } else {
                            self.walk(call);
                        }
                    }
                }
                RTE_VALUES => self.walk((*range).values_lists.cast()),
                RTE_TABLEFUNC => self.walk((*range).tablefunc.cast()),
                _ => {}
            }
        }
    }

    /// Looks at a relation that is read; `None` where nobody knows which rows.
    fn relation(
        &mut self,
        oid: pg_sys::Oid,
        bounds: Option<Bounds>,
        demanded: &[Bounds],
        slice: Option<usize>,
    ) {
        let name = quote::relation(oid);
        let kind = unsafe { pg_sys::get_rel_relkind(oid) } as u8;
        let schema = unsafe { text_of(pg_sys::get_namespace_name(pg_sys::get_rel_namespace(oid))) };
        if is_builtin(oid) || schema == "backfill" {
            self.report(Rule::ServerState, name);
            return;
        }
        match kind {
            pg_sys::RELKIND_SEQUENCE => {
                self.report(Rule::Sequence, name);
                return;
            }
            pg_sys::RELKIND_VIEW => {
                let key = (u32::from(oid) as usize, vec![bounds.unwrap_or(0)], demanded.to_vec(), slice);
                if self.seen.insert(key)
                    && let Some(query) = reach::view_query(oid)
                {
                    self.within(format!("view {name}"), vec![], self.reading.clone(), None, |this| {
                        this.query(query, demanded, slice, false);
                    });
                }
                return;
            }
            pg_sys::RELKIND_MATVIEW => self.report(Rule::MaterializedView, name.clone()),
            pg_sys::RELKIND_FOREIGN_TABLE => self.report(Rule::ForeignTable, name.clone()),
            _ => {}
        }
        if unsafe { pg_sys::get_rel_persistence(oid) } as u8 == pg_sys::RELPERSISTENCE_TEMP {
            self.report(Rule::Session, name.clone());
        }
        if self.seen.insert((u32::from(oid) as usize, vec![], vec![], None)) {
            self.expressions(oid, &name);
        }
        let is_own = self.family.contains(&oid);
        if is_own && !self.depends_on_past {
            self.report(Rule::SelfRead, name.clone());
        }
        if is_own && self.depends_on_past {
            return;
        }
        let here = self.here();
        match bounds {
            Some(bounds) => self.tables.push((bounds, name, here)),
            None => self.report(Rule::MutableDimension, name),
        }
    }

    /// What counts whenever a table is read: its policies, and generated columns that are computed then.
    fn expressions(&mut self, oid: pg_sys::Oid, name: &str) {
        const EXPRESSIONS: &str =
            "SELECT 'column ' || pg_catalog.quote_ident(a.attname) || ' of ', d.adbin::pg_catalog.text
            FROM pg_catalog.pg_attrdef d
            JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
            WHERE d.adrelid = $1 AND a.attgenerated = 'v'
            UNION ALL
            SELECT 'policy ' || pg_catalog.quote_ident(p.polname) || ' of ', p.polqual::pg_catalog.text
            FROM pg_catalog.pg_policy p JOIN pg_catalog.pg_class c ON c.oid = p.polrelid AND c.relrowsecurity
            WHERE p.polrelid = $1 AND p.polcmd IN ('r', '*') AND p.polqual IS NOT NULL
            ORDER BY 1";
        let found: Vec<(String, String)> =
            in_catalog(|| spi::latest(EXPRESSIONS, &[oid.into()], |row| (row.at(1), row.at(2))));
        for (what, expression) in found {
            self.within(format!("{what}{name}"), vec![], self.reading.named(), None, |this| {
                this.walk_stored(&expression)
            });
        }
    }

    /// What the target fills in where the query gives no value, and what its triggers do to new rows.
    fn target(&mut self, table: &Table, filled: &BTreeSet<&str>) {
        // A column without a default has that of its domain.
        const COLUMNS: &str = "SELECT a.attname::pg_catalog.text, COALESCE(d.adbin, t.typdefaultbin)::pg_catalog.text,
                CASE WHEN a.attidentity <> '' THEN 'identity' WHEN a.attgenerated <> '' THEN 'generated' ELSE 'default' END
            FROM pg_catalog.pg_attribute a
            JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
            LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
              AND (d.adbin IS NOT NULL OR t.typdefaultbin IS NOT NULL OR a.attidentity <> '')
            ORDER BY a.attnum";
        // Of all partitions, where a trigger of the parent stands once.
        const TRIGGERS: &str = concat!(
            "SELECT DISTINCT ON (t.tgname, t.tgfoid) pg_catalog.quote_ident(t.tgname), t.tgrelid, t.tgfoid
            FROM pg_catalog.pg_trigger t
            WHERE t.tgrelid IN (SELECT w.relid FROM ",
            with_partitions!("$1"),
            " w) AND t.tgparentid = 0 AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 7 = 7
            ORDER BY t.tgname, t.tgfoid, t.tgrelid"
        );
        let name = table.shown();
        let reading = self.reading.named();
        let columns: Vec<(String, Option<String>, String)> = in_catalog(|| {
            spi::latest(COLUMNS, &[table.oid.into()], |row| (row.at(1), row.get(2), row.at(3)))
        });
        for (column, expression, what) in columns {
            if filled.contains(column.as_str()) {
                continue;
            }
            let place = format!("{} ({what})", place_of_column(&column, &name));
            self.within(place, vec![], reading.clone(), None, |this| match expression {
                Some(expression) => this.walk_stored(&expression),
                None => this.report(Rule::Sequence, "identity"),
            });
        }
        let triggers: Vec<(String, pg_sys::Oid, pg_sys::Oid)> = in_catalog(|| {
            spi::latest(TRIGGERS, &[table.oid.into()], |row| (row.at(1), row.at(2), row.at(3)))
        });
        for (trigger, relation, function) in triggers {
            let place = format!("trigger {trigger} of {}", quote::relation(relation));
            self.within(place, vec![], reading.clone(), None, |this| {
                let Body { function, reading, .. } = reach::body_of(function, &this.reading);
                // A trigger's function is VOLATILE whatever it does.
                if let Some(source) = function.and_then(|function| function.source) {
                    this.words(&source, &reading);
                }
            });
        }
    }

    /// Looks at a node of an expression, and answers whether to look below it.
    unsafe fn node(&mut self, node: *mut pg_sys::Node) -> bool {
        unsafe {
            match (*node).type_ {
                T::T_Query => {
                    self.query(node.cast(), &[], None, false);
                    return false;
                }
                T::T_SubLink => {
                    self.sublink(node.cast());
                    return false;
                }
                T::T_ScalarArrayOpExpr => {
                    let operands = each::<pg_sys::Node>((*node.cast::<pg_sys::ScalarArrayOpExpr>()).args);
                    self.sets.extend(operands.map(|operand| operand as usize));
                }
                T::T_Var => self.variable(node.cast()),
                T::T_Const => self.constant(node.cast()),
                T::T_SQLValueFunction => self.value((*node.cast::<pg_sys::SQLValueFunction>()).op),
                T::T_NextValueExpr => self.report(Rule::Sequence, "identity"),
                T::T_CoerceViaIO => {
                    let conversion: *mut pg_sys::CoerceViaIO = node.cast();
                    if let Some(text) = constant_text((*conversion).arg.cast())
                        && is_temporal((*conversion).resulttype)
                        && purity::names_the_clock(&text)
                    {
                        self.report(Rule::Clock, quote::literal(&text));
                    }
                }
                T::T_Aggref => self.aggregate(node.cast()),
                T::T_WindowFunc => self.window(node.cast()),
                _ => {}
            }
            if is(node, T::T_FuncExpr) {
                self.call(node.cast(), &[]);
            } else {
                for function in walk::functions(node) {
                    self.function(function, vec![], &[], false);
                }
            }
            true
        }
    }

    unsafe fn sublink(&mut self, link: *mut pg_sys::SubLink) {
        use pg_sys::SubLinkType::{ANY_SUBLINK, ARRAY_SUBLINK, EXISTS_SUBLINK};
        unsafe {
            self.walk((*link).testexpr);
            let inner: Query = (*link).subselect.cast();
            let demanded = match (*link).subLinkType {
                ANY_SUBLINK => self.scope.demanded_of_members(link),
                _ => vec![],
            };
            let gives_list = (*link).subLinkType == ARRAY_SUBLINK && !self.sets.contains(&(link as usize));
            if gives_list && (*inner).sortClause.is_null() && !(*(*inner).jointree).fromlist.is_null() {
                self.report(Rule::AggregateWithoutOrder, "ARRAY(SELECT ...)");
            }
            self.query(inner, &demanded, None, (*link).subLinkType == EXISTS_SUBLINK);
        }
    }

    unsafe fn variable(&mut self, variable: *mut pg_sys::Var) {
        let name = match unsafe { (*variable).varattno } {
            -1 => "ctid",
            -2 => "xmin",
            -3 => "cmin",
            -4 => "xmax",
            -5 => "cmax",
            -6 => "tableoid",
            _ => return,
        };
        let (range, up) = unsafe { ((*variable).varno, (*variable).varlevelsup as usize) };
        if let Some(relation) = self.scope.relation(range, up) {
            self.report(Rule::SystemColumn, format!("{}.{name}", quote::relation(relation)));
        }
    }

    /// A literal was turned into a moment when it was read: only the text still says so.
    unsafe fn constant(&mut self, constant: *mut pg_sys::Const) {
        let pg_sys::Const { location, consttype, constisnull, .. } = unsafe { *constant };
        let is_read = location >= 0 && !constisnull && is_temporal(consttype);
        let Some(text) = self.text.clone().filter(|_| is_read) else { return };
        let Some(literal) = text.get(location as usize..).and_then(purity::first_literal) else { return };
        if let Some(value) = unsafe { value_of(&literal) }.filter(|value| purity::names_the_clock(value)) {
            self.report(Rule::Clock, quote::literal(&value));
        }
    }

    fn value(&mut self, op: pg_sys::SQLValueFunctionOp::Type) {
        use pg_sys::SQLValueFunctionOp as Op;
        let (rule, name) = match op {
            Op::SVFOP_CURRENT_DATE => (Rule::Clock, "CURRENT_DATE"),
            Op::SVFOP_CURRENT_TIME | Op::SVFOP_CURRENT_TIME_N => (Rule::Clock, "CURRENT_TIME"),
            Op::SVFOP_CURRENT_TIMESTAMP | Op::SVFOP_CURRENT_TIMESTAMP_N => (Rule::Clock, "CURRENT_TIMESTAMP"),
            Op::SVFOP_LOCALTIME | Op::SVFOP_LOCALTIME_N => (Rule::Clock, "LOCALTIME"),
            Op::SVFOP_LOCALTIMESTAMP | Op::SVFOP_LOCALTIMESTAMP_N => (Rule::Clock, "LOCALTIMESTAMP"),
            Op::SVFOP_CURRENT_ROLE => (Rule::Session, "CURRENT_ROLE"),
            Op::SVFOP_CURRENT_USER => (Rule::Session, "CURRENT_USER"),
            Op::SVFOP_USER => (Rule::Session, "USER"),
            Op::SVFOP_SESSION_USER => (Rule::Session, "SESSION_USER"),
            Op::SVFOP_CURRENT_CATALOG => (Rule::Session, "CURRENT_CATALOG"),
            // The search_path is the pipeline's.
            _ => return,
        };
        self.report(rule, name);
    }

    unsafe fn aggregate(&mut self, aggregate: *mut pg_sys::Aggref) {
        unsafe {
            let function = (*aggregate).aggfnoid;
            let is_plain = (*aggregate).aggkind as u8 == b'n';
            if !is_plain || !(*aggregate).aggorder.is_null() || !(*aggregate).aggdistinct.is_null() {
                return;
            }
            let name = function_name(function);
            let needs_order =
                purity::aggregate_needs_order(&name) || (!is_builtin(function) && keeps_order(function));
            if needs_order && !self.scope.is_sorted() {
                self.report(Rule::AggregateWithoutOrder, signature(function));
            }
            let types = each::<pg_sys::TargetEntry>((*aggregate).args)
                .any(|entry| is_float(pg_sys::exprType((*entry).expr.cast())));
            if is_builtin(function) && purity::adds_up(&name) && types {
                self.report(Rule::FloatSum, signature(function));
            }
        }
    }

    unsafe fn window(&mut self, call: *mut pg_sys::WindowFunc) {
        unsafe {
            let Some(window) = self.scope.window((*call).winref) else { return };
            if !(*window).orderClause.is_null() {
                return;
            }
            let function = (*call).winfnoid;
            let name = function_name(function);
            let whole =
                pg_sys::FRAMEOPTION_START_UNBOUNDED_PRECEDING | pg_sys::FRAMEOPTION_END_UNBOUNDED_FOLLOWING;
            let frame = (*window).frameOptions as u32;
            let by_rows = frame & pg_sys::FRAMEOPTION_ROWS != 0 && frame & whole != whole;
            let collects = (*call).winagg
                && (purity::aggregate_needs_order(&name) || (!is_builtin(function) && keeps_order(function)));
            if purity::window_needs_order(&name) || collects || ((*call).winagg && by_rows) {
                self.report(Rule::WindowWithoutOrder, signature(function));
            }
            let adds =
                each::<pg_sys::Node>((*call).args).any(|argument| is_float(pg_sys::exprType(argument)));
            if is_builtin(function) && purity::adds_up(&name) && adds {
                self.report(Rule::FloatSum, signature(function));
            }
        }
    }

    /// Looks at a call, not at its arguments.
    unsafe fn call(&mut self, call: *mut pg_sys::FuncExpr, demanded: &[Bounds]) {
        unsafe {
            let function = (*call).funcid;
            let arguments: Vec<*mut pg_sys::Node> = each((*call).args).collect();
            let text = |place: usize| arguments.get(place).and_then(|argument| constant_text(*argument));
            self.input(call, text(0));
            if let Some(name) = restriction::builtin_name(function) {
                let is_number = match name.as_str() {
                    "to_number" => true,
                    "to_date" | "to_timestamp" => false,
                    "to_char" => category(pg_sys::exprType(arguments[0])) == b'N',
                    "current_setting" if text(0).is_some_and(|name| settings::is_pinned(&name)) => return,
                    _ => {
                        self.function(function, vec![], &[], false);
                        return;
                    }
                };
                if text(1).is_some_and(|format| purity::follows_locale(&format, is_number)) {
                    self.report(Rule::SettingNotPinned, signature(function));
                }
                return;
            }
            let bounds = self.scope.arguments(call);
            let is_short = arguments.len() < pg_sys::get_func_nargs(function) as usize;
            self.function(function, bounds, demanded, is_short);
        }
    }

    /// A function that reads a moment from its text (`date_in`).
    unsafe fn input(&mut self, call: *mut pg_sys::FuncExpr, text: Option<String>) {
        let reads = unsafe { is_builtin((*call).funcid) && is_temporal((*call).funcresulttype) };
        if let Some(text) = text.filter(|text| reads && purity::names_the_clock(text)) {
            self.report(Rule::Clock, quote::literal(&text));
        }
    }

    /// Looks at a function that is called: with arguments that are bounded so, and some of them left to their defaults.
    fn function(&mut self, oid: pg_sys::Oid, arguments: Vec<Bounds>, demanded: &[Bounds], is_short: bool) {
        if oid == pg_sys::InvalidOid {
            return;
        }
        let signature = signature(oid);
        if is_builtin(oid) {
            if let Some(rule) = purity::of_builtin(&signature, volatility(oid)) {
                self.report(rule, signature);
            }
            return;
        }
        if let Some(rule) = purity::of_name(&signature) {
            self.report(rule, signature);
            return;
        }
        let is_called = self.reading.is_called;
        let Body { function: Some(function), queries, reading } = reach::body_of(oid, &self.reading) else {
            return;
        };
        // A VOLATILE function in SQL sees what others commit while it runs, as soon as it reads a table.
        let varies = match (&queries, &function.source) {
            (Some(queries), _) => queries.iter().any(|query| reads_table(*query)),
            (None, Some(source)) if function.is_sql => !purity::tables_of_text(&tokens(source)).is_empty(),
            _ => true,
        };
        if varies && volatility(oid) == Volatility::Volatile {
            self.report(Rule::Volatile, signature.clone());
        }
        let manner = usize::from(is_short) + 2 * usize::from(is_called);
        let key = (u32::from(oid) as usize, arguments.clone(), demanded.to_vec(), Some(manner));
        if !self.seen.insert(key) {
            return;
        }
        if is_short {
            let place = format!("function {signature} (default)");
            self.within(place, vec![], self.reading.clone(), None, |this| {
                function.stored.iter().for_each(|expression| this.walk_stored(expression));
            });
        }
        let text: Option<Rc<str>> = function.source.as_deref().map(Into::into);
        self.within(format!("function {signature}"), arguments, reading.clone(), text, |this| {
            function.inner.iter().for_each(|inner| this.function(*inner, vec![], &[], false));
            match (queries, &function.source) {
                (Some(queries), _) => {
                    let count = queries.len();
                    for (place, query) in queries.into_iter().enumerate() {
                        let demanded = if place + 1 == count { demanded } else { &[] };
                        this.query(query, demanded, None, false);
                    }
                }
                (None, Some(source)) => this.words(source, &reading),
                (None, None) => {}
            }
        });
    }

    /// Looks at a text of which only the words are known.
    fn words(&mut self, source: &str, reading: &Reading) {
        let tokens = tokens(source);
        for (rule, object) in purity::of_text(&tokens) {
            self.report(rule, object);
        }
        let calls = purity::calls_of_text(&tokens)
            .into_iter()
            .flat_map(|(schema, name)| schema.into_iter().chain([name]));
        let calls: BTreeSet<String> = calls.collect();
        let read = purity::tables_of_text(&tokens);
        let mut tables = BTreeSet::new();
        for (schema, table) in read {
            if table.starts_with("pg_")
                || matches!(schema.as_deref(), Some("pg_catalog" | "information_schema"))
            {
                self.report(Rule::ServerState, table);
            } else {
                tables.extend(schema);
                tables.insert(table);
            }
        }
        let names = |names: BTreeSet<String>| names.into_iter().map(Token::Name).collect::<Vec<_>>();
        let before = replace(&mut self.reading, reading.named());
        for object in reach::named_by(&names(calls), &reading.path) {
            if let Object::Function(oid) = object {
                self.function(oid.into(), vec![], &[], false);
            }
        }
        for object in reach::named_by(&names(tables), &reading.path) {
            if let Object::Relation(oid) = object {
                self.relation(oid.into(), None, &[], None);
            }
        }
        self.reading = before;
    }

    /// Whether the query takes its window at all.
    fn bounds_of(&mut self, query: Query) {
        let used = parameters(query);
        match (used.contains(&1), used.contains(&2)) {
            (true, true) => {}
            (false, false) => self.report(Rule::WindowUnused, "$1, $2"),
            (true, false) => self.report(Rule::BoundUnused, "$2"),
            (false, true) => self.report(Rule::BoundUnused, "$1"),
        }
    }

    fn answer(mut self) -> Vec<Found> {
        let tables = take(&mut self.tables);
        let is_driven = self.is_driven || tables.iter().any(|(bounds, ..)| *bounds == BOTH);
        for (bounds, name, place) in tables {
            let rule = match bounds {
                BOTH => continue,
                LOW => Rule::OpenEnded,
                HIGH => Rule::OpenStart,
                _ if is_driven => Rule::MutableDimension,
                _ => Rule::NotWindowed,
            };
            self.report_at(rule, name, place);
        }
        let found = self.found.into_iter();
        found.map(|((rule, object, _), place)| Found { rule, object, place }).collect()
    }
}
