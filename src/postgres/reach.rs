//! What a query reaches: the tables, views, functions and types on which its meaning depends, however far away.
//!
//! It walks the analysed query, the rules of views, the bodies of SQL functions, the expressions of domains, generated columns
//! and policies. Of a function in another language only the text is known: each name in it that stands for a function, a table
//! or a type, and each operator, is taken to be reached. What PostgreSQL itself brings is not listed: it means the same on every
//! server of a major version.
//!
//! To analyse a text runs code: the constants in it are read, and what reads them may be somebody's check of a domain. Whose
//! type a name stands for depends on the `search_path`. So a text is analysed only where PostgreSQL would do the same when the
//! query runs: as the query's author, under his path, and only of a function that the query calls in his name, by itself or through
//! what it so calls. All else is taken by its names: what is only named in a text; what policies, generated columns and checks
//! of domains call, which may never run as him; what is behind SECURITY DEFINER, which runs as somebody else.

use crate::domain::tokens::{Token, tokens};
use crate::postgres::canonical::{self, each, is};
use crate::postgres::query::Select;
use crate::postgres::{quote, role, settings, spi, subtransaction, walk};
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary as guarded;
use pgrx::{pg_guard, pg_sys};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::rc::Rc;

/// The number of the function of a b-tree that compares (`BTORDER_PROC`).
const COMPARING: i16 = 1;

/// Something that a query's meaning depends on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// `query`, `view`, `columns` of a view, `table`, `function`, `operator`, `cast`, `type`,
    /// `collation`, `text search`, `search_path`.
    pub kind: String,
    /// With its schema; empty for the query itself.
    pub name: String,
    /// What must stay the same, as text that is the same on every server.
    pub definition: String,
    /// Whether it is text of queries that may be analysed in the author's name.
    is_called: bool,
}

impl Part {
    /// As it was written down.
    pub fn recorded(kind: String, name: String, definition: String) -> Self {
        Self { kind, name, definition, is_called: false }
    }

    fn new(kind: &str, name: impl Into<String>, definition: impl Into<String>) -> Self {
        Self::recorded(kind.to_owned(), name.into(), definition.into())
    }

    fn called(self, is_called: bool) -> Self {
        Self { is_called, ..self }
    }
}

/// How the texts of functions are read.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Under this `search_path`, where they have none of their own.
    pub path: Rc<str>,
    /// Whether they are called, in the name of whoever reads them.
    pub is_called: bool,
}

impl Reading {
    /// Of what a query calls that was written by whoever reads, for this `search_path`.
    pub fn called(path: &str) -> Self {
        Self { path: settings::with_temporary_last(path).into(), is_called: true }
    }

    /// Of what is only named, or runs as somebody else.
    pub fn named(&self) -> Self {
        Self { path: self.path.clone(), is_called: false }
    }
}

/// Columns of a table, by their numbers; 0 is all of them.
type Columns = BTreeSet<i16>;

#[derive(Default)]
struct Reach {
    relations: BTreeMap<u32, Columns>,
    /// Of those, what was found and not entered yet.
    fresh: BTreeMap<u32, Columns>,
    views: BTreeMap<u32, Part>,
    collations: BTreeSet<u32>,
    /// Operators of somebody's own, of which the text of a query says no more than their names; and what compares where they
    /// sort, or 0.
    operators: BTreeMap<u32, u32>,
    /// From which type to which other one something is converted.
    casts: BTreeSet<(u32, u32)>,
    /// Of text search.
    configurations: BTreeSet<u32>,
    entered: BTreeSet<Object>,
    /// What was found and not entered yet: what is called, and what is not.
    called: BTreeSet<(Object, Rc<str>)>,
    named: BTreeSet<(Object, Rc<str>)>,
    /// How what is walked now reads the texts of functions.
    reading: Reading,
    parts: Vec<Part>,
    /// Whether the `search_path` counts when the query runs.
    reads_path: bool,
}

/// By their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    Relation(u32),
    Function(u32),
    Operator(u32),
    Type(u32),
}

/// The query and all that it reaches, in a fixed order. `path` is the `search_path` that it is read under.
pub fn parts(query: *const pg_sys::Query, path: &str) -> Vec<Part> {
    let mut reach = Reach { reading: Reading::called(path), ..Reach::default() };
    reach.walk(query.cast_mut().cast());
    // What is called comes first: what is called and named is called.
    loop {
        let called = reach.called.pop_first();
        let is_called = called.is_some();
        let Some((object, path)) = called.or_else(|| reach.named.pop_first()) else { break };
        reach.reading = Reading { path, is_called };
        let is_first = reach.entered.insert(object);
        match object {
            Object::Relation(oid) => reach.enter_relation(oid.into(), is_first),
            Object::Function(oid) if is_first => reach.enter_function(oid.into()),
            Object::Type(oid) if is_first => reach.enter_type(oid.into()),
            _ => {}
        }
    }
    let mut parts = reach.parts;
    parts.extend(reach.views.into_values());
    let numbers: Vec<i64> = reach.relations.keys().map(|oid| i64::from(*oid)).collect();
    let hides_rows = in_catalog(|| spi::latest(HIDES_ROWS, &[numbers.into()], |row| row.at::<bool>(1)));
    for (relation, columns) in &reach.relations {
        parts.extend(table(pg_sys::Oid::from(*relation), columns, hides_rows.contains(&true)));
    }
    for collation in &reach.collations {
        parts.extend(collations(pg_sys::Oid::from(*collation)));
    }
    for configuration in &reach.configurations {
        parts.extend(configurations(pg_sys::Oid::from(*configuration)));
    }
    parts.extend(
        reach.operators.iter().filter_map(|(operator, comparing)| operator_part(*operator, *comparing)),
    );
    parts.extend(casts(&reach.casts));
    if reach.reads_path {
        parts.push(Part::new("search_path", "", path));
    }
    parts.sort();
    parts.insert(0, Part::new("query", "", canonical::text(query)).called(true));
    parts
}

const HIDES_ROWS: &str = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c
    WHERE c.oid = ANY ($1::pg_catalog.oid[]) AND c.relrowsecurity)";

const BY_NAME: &str = "SELECT p.oid FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE p.oid >= 16384
      AND pg_catalog.format('%I.%I(%s)', n.nspname, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)) = $1";

/// A definition of a part as this server would write it, were it given as text; `None` for what is no query, and for what must
/// not be read in the author's name. The author and the settings are the caller's to see to.
pub fn reworded(definition: &str, of: &Part, path: &str) -> Option<String> {
    if !of.is_called {
        return None;
    }
    match of.kind.as_str() {
        "query" | "view" => {
            let select = Select::read(definition).ok()?;
            Some(canonical::text(select.analysed()))
        }
        "function" => {
            let found = in_catalog(|| {
                let oid = spi::latest(BY_NAME, &[of.name.as_str().into()], |row| row.at::<pg_sys::Oid>(1));
                let oid = oid.into_iter().next()?;
                spi::latest(FUNCTION, &[oid.into()], Function::decode)
                    .into_iter()
                    .next()
                    .map(|found| (oid, found))
            });
            let (oid, function) = found.filter(|(_, function)| function.is_sql)?;
            let body = definition.strip_prefix(&function.header)?;
            let path = function.path.unwrap_or_else(|| settings::with_temporary_last(path));
            let queries = settings::for_query("UTC", &path, || unsafe { analysed(oid, body) })?;
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

impl Reach {
    fn walk(&mut self, node: *mut pg_sys::Node) {
        let flags = pg_sys::QTW_EXAMINE_RTES_BEFORE
            | pg_sys::QTW_EXAMINE_SORTGROUP
            // They hold all columns of what is joined, whether or not they are read.
            | pg_sys::QTW_IGNORE_JOINALIASES;
        let mut pending = vec![node];
        while let Some(node) = pending.pop() {
            if node.is_null() {
                continue;
            }
            unsafe {
                self.node(node);
                pending.extend(merged(node));
                walk::functions(node).into_iter().for_each(|function| self.function(function));
                pending.extend(walk::children(node, flags));
            }
        }
    }

    /// Walks an expression that a catalog holds as text.
    fn walk_stored(&mut self, text: &str) {
        let text = quote::c_string(text);
        self.walk(unsafe { pg_sys::stringToNode(text.as_ptr()).cast() });
    }

    /// Does something in which texts of functions are read in another way.
    fn reading<T>(&mut self, reading: Reading, f: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.reading, reading);
        let result = f(self);
        self.reading = before;
        result
    }

    fn found(&mut self, object: Object) {
        let found = if self.reading.is_called { &mut self.called } else { &mut self.named };
        found.insert((object, self.reading.path.clone()));
    }

    fn function(&mut self, oid: pg_sys::Oid) {
        let object = Object::Function(oid.into());
        if oid != pg_sys::InvalidOid && !is_builtin(oid) && !self.entered.contains(&object) {
            self.found(object);
        }
    }

    fn operator(&mut self, oid: pg_sys::Oid) {
        if oid != pg_sys::InvalidOid && !is_builtin(oid) {
            self.operators.entry(oid.into()).or_default();
            self.function(unsafe { pg_sys::get_opcode(oid) });
        }
    }

    /// A conversion of what a node gives, which is written in the same way whatever does it.
    unsafe fn cast(&mut self, from: *mut pg_sys::Node, to: *mut pg_sys::Node) {
        let base = |node| unsafe { pg_sys::getBaseType(pg_sys::exprType(node)) };
        let (from, to) = (base(from), base(to));
        if from != to {
            self.casts.insert((from.into(), to.into()));
        }
    }

    /// An operator that sorts, and what really compares then.
    fn sorting(&mut self, oid: pg_sys::Oid) {
        self.operator(oid);
        if oid == pg_sys::InvalidOid || is_builtin(oid) {
            return;
        }
        let (mut family, mut input) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
        let mut strategy = Default::default();
        unsafe {
            if pg_sys::get_ordering_op_properties(oid, &mut family, &mut input, &mut strategy) {
                let comparing = pg_sys::get_opfamily_proc(family, input, input, COMPARING);
                self.operators.insert(oid.into(), comparing.into());
                self.function(comparing);
            }
        }
    }

    fn relation(&mut self, oid: pg_sys::Oid, columns: impl IntoIterator<Item = i16>) {
        if is_builtin(oid) {
            return;
        }
        let number = u32::from(oid);
        let known = self.relations.entry(number).or_default();
        let fresh: Columns = columns.into_iter().filter(|column| known.insert(*column)).collect();
        if !fresh.is_empty() || !self.entered.contains(&Object::Relation(number)) {
            self.fresh.entry(number).or_default().extend(fresh);
            self.found(Object::Relation(number));
        }
    }

    fn data_type(&mut self, oid: pg_sys::Oid) {
        let object = Object::Type(oid.into());
        if oid != pg_sys::InvalidOid && !is_builtin(oid) && !self.entered.contains(&object) {
            self.found(object);
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
                    self.sorting((*clause).sortop);
                }
                T::T_OpExpr | T::T_DistinctExpr | T::T_NullIfExpr => {
                    self.operator((*node.cast::<pg_sys::OpExpr>()).opno)
                }
                T::T_ScalarArrayOpExpr => self.operator((*node.cast::<pg_sys::ScalarArrayOpExpr>()).opno),
                T::T_RowCompareExpr => {
                    self.oids((*node.cast::<pg_sys::RowCompareExpr>()).opnos, Self::operator)
                }
                T::T_FuncExpr => {
                    let call: *mut pg_sys::FuncExpr = node.cast();
                    if let (true, Some(given)) = (is_cast((*call).funcformat), each((*call).args).next()) {
                        self.cast(given, node);
                    }
                }
                T::T_RelabelType => self.cast((*node.cast::<pg_sys::RelabelType>()).arg.cast(), node),
                T::T_CoerceViaIO => self.cast((*node.cast::<pg_sys::CoerceViaIO>()).arg.cast(), node),
                T::T_CollateExpr => self.collation((*node.cast::<pg_sys::CollateExpr>()).collOid),
                T::T_Const => self.constant(node.cast()),
                T::T_Var => self.collation((*node.cast::<pg_sys::Var>()).varcollid),
                T::T_RangeTblFunction => {
                    let function: *mut pg_sys::RangeTblFunction = node.cast();
                    self.oids((*function).funccoltypes, Self::data_type);
                    self.oids((*function).funccolcollations, Self::collation);
                }
                T::T_TableFunc => {
                    let function: *mut pg_sys::TableFunc = node.cast();
                    self.oids((*function).coltypes, Self::data_type);
                    self.oids((*function).colcollations, Self::collation);
                }
                _ => {}
            }
            if has_type((*node).type_) {
                self.data_type(pg_sys::exprType(node));
            }
        }
    }

    unsafe fn constant(&mut self, constant: *mut pg_sys::Const) {
        let constant = unsafe { &*constant };
        if constant.consttype == pg_sys::REGCONFIGOID && !constant.constisnull {
            let oid = pg_sys::Oid::from(constant.constvalue.value() as u32);
            if !is_builtin(oid) {
                self.configurations.insert(oid.into());
            }
        }
    }

    unsafe fn oids(&mut self, list: *mut pg_sys::List, f: fn(&mut Self, pg_sys::Oid)) {
        let count = each_count(list);
        (0..count).for_each(|place| f(self, unsafe { pg_sys::list_nth_oid(list, place) }));
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

    fn enter_relation(&mut self, oid: pg_sys::Oid, is_first: bool) {
        let fresh: Vec<i64> = self.fresh.remove(&oid.into()).into_iter().flatten().map(i64::from).collect();
        let named = self.reading.named();
        // They may never run as who reads the table.
        self.reading(named, |this| {
            let args = || [oid.into(), fresh.clone().into()];
            let types = in_catalog(|| {
                spi::latest(COLUMN_TYPES, &args(), |row| (row.at::<pg_sys::Oid>(1), row.at::<pg_sys::Oid>(2)))
            });
            for (type_oid, collation) in types {
                this.data_type(type_oid);
                this.collation(collation);
            }
            let computed = in_catalog(|| spi::latest(COMPUTED, &args(), |row| row.at::<String>(1)));
            let policies = if is_first { expressions(POLICIES, oid) } else { vec![] };
            computed.iter().chain(&policies).for_each(|expression| this.walk_stored(expression));
        });
        if is_first && let Some(query) = view_query(oid) {
            let part = Part::new("view", quote::relation(oid), canonical::text(query));
            self.views.insert(oid.into(), part.called(self.reading.is_called));
            self.walk(query.cast());
        }
    }

    fn enter_type(&mut self, oid: pg_sys::Oid) {
        let found = in_catalog(|| {
            spi::latest(TYPE, &[oid.into()], |row| {
                let part = Part::new("type", row.at::<String>(1), row.at::<String>(2));
                let [inner, collations, functions] =
                    [3, 6, 7].map(|column| row.at::<Vec<pg_sys::Oid>>(column));
                (part, inner, row.get::<pg_sys::Oid>(4), row.at::<bool>(5), collations, functions)
            })
        });
        let named = self.reading.named();
        self.reading(named, |this| {
            for (part, inner, relation, is_listed, collations, functions) in found {
                inner.into_iter().for_each(|inner| this.data_type(inner));
                relation.into_iter().for_each(|relation| this.relation(relation, [0]));
                collations.into_iter().for_each(|collation| this.collation(collation));
                functions.into_iter().for_each(|function| this.function(function));
                if is_listed {
                    this.parts.push(part);
                }
            }
            for expression in expressions(TYPE_EXPRESSIONS, oid) {
                this.walk_stored(&expression);
            }
        });
    }

    fn enter_function(&mut self, oid: pg_sys::Oid) {
        let Body { function, queries, reading } = body_of(oid, &self.reading);
        let Some(function) = function else { return };
        function.types.iter().for_each(|inner| self.data_type(*inner));
        function.stored.iter().for_each(|expression| self.walk_stored(expression));
        self.reads_path |= function.source.is_some() && function.path.is_none();
        let is_called = reading.is_called && queries.is_some();
        let body = self.reading(reading, |this| {
            function.inner.iter().for_each(|inner| this.function(*inner));
            match (queries, &function.source) {
                (Some(queries), _) => queries
                    .into_iter()
                    .map(|query| {
                        this.walk(query.cast());
                        canonical::text(query)
                    })
                    .collect::<Vec<_>>()
                    .join("; "),
                (None, Some(source)) => this.enter_names(source),
                (None, None) => String::new(),
            }
        });
        let definition = format!("{} {body}", function.header);
        self.parts.push(Part::new("function", function.name, definition.trim()).called(is_called));
    }

    /// A body of which only the text is known.
    fn enter_names(&mut self, source: &str) -> String {
        let tokens = tokens(source);
        let path = self.reading.path.clone();
        let named = self.reading.named();
        self.reading(named, |this| {
            for object in named_by(&tokens, &path) {
                match object {
                    Object::Function(oid) => this.function(oid.into()),
                    Object::Relation(oid) => this.relation(oid.into(), [0]),
                    Object::Operator(oid) => this.operator(oid.into()),
                    Object::Type(oid) => this.data_type(oid.into()),
                }
            }
        });
        tokens.iter().map(Token::text).collect::<Vec<_>>().join(" ")
    }
}

fn each_count(list: *mut pg_sys::List) -> i32 {
    if list.is_null() { 0 } else { unsafe { (*list).length } }
}

/// What a join merges of columns (USING): all else that it gives are columns as they are.
unsafe fn merged(node: *mut pg_sys::Node) -> Vec<*mut pg_sys::Node> {
    unsafe {
        let range: *mut pg_sys::RangeTblEntry = node.cast();
        if !is(node, pg_sys::NodeTag::T_RangeTblEntry) || (*range).rtekind != pg_sys::RTEKind::RTE_JOIN {
            return vec![];
        }
        let columns = each::<pg_sys::Node>((*range).joinaliasvars);
        columns.filter(|column| !is(*column, pg_sys::NodeTag::T_Var)).collect()
    }
}

/// Whether a call is written as a conversion, or not at all.
fn is_cast(format: pg_sys::CoercionForm::Type) -> bool {
    use pg_sys::CoercionForm::{COERCE_EXPLICIT_CAST, COERCE_IMPLICIT_CAST};
    [COERCE_EXPLICIT_CAST, COERCE_IMPLICIT_CAST].contains(&format)
}

/// Whether a node is an expression that has a type of its own; the others have that of what is below them.
fn has_type(tag: pg_sys::NodeTag) -> bool {
    use pg_sys::NodeTag as T;
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    if tag == T::T_JsonExpr {
        return true;
    }
    #[cfg(not(feature = "pg15"))]
    if tag == T::T_JsonConstructorExpr {
        return true;
    }
    [
        T::T_Var,
        T::T_Const,
        T::T_Param,
        T::T_Aggref,
        T::T_WindowFunc,
        T::T_SubscriptingRef,
        T::T_FuncExpr,
        T::T_OpExpr,
        T::T_FieldSelect,
        T::T_FieldStore,
        T::T_RelabelType,
        T::T_CoerceViaIO,
        T::T_ArrayCoerceExpr,
        T::T_ConvertRowtypeExpr,
        T::T_CaseExpr,
        T::T_ArrayExpr,
        T::T_RowExpr,
        T::T_CoalesceExpr,
        T::T_MinMaxExpr,
        T::T_CoerceToDomain,
        T::T_CoerceToDomainValue,
        T::T_SetToDefault,
    ]
    .contains(&tag)
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
                let query = pg_sys::copyObjectImpl(pg_sys::list_nth((**rule).actions, 0).cast_const()).cast();
                drop_old_and_new(query, oid);
                query
            });
        }
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        found
    }
}

/// PostgreSQL 15 puts the view itself twice before what its query reads, as OLD and NEW, and later ones do where somebody wrote
/// the rule. Nothing refers to them, and text that is made of the query would differ by them.
unsafe fn drop_old_and_new(query: *mut pg_sys::Query, view: pg_sys::Oid) {
    unsafe {
        let count = each::<pg_sys::RangeTblEntry>((*query).rtable)
            .take_while(|range| (**range).rtekind == pg_sys::RTEKind::RTE_RELATION && (**range).relid == view)
            .count();
        if count == 2 {
            (*query).rtable = pg_sys::list_delete_first_n((*query).rtable, 2);
            pg_sys::OffsetVarNodes(query.cast(), -2, 0);
        }
    }
}

/// Reads the catalog, in statements that mean the same whatever the `search_path` of the query that is looked at.
pub fn in_catalog<T>(f: impl FnOnce() -> T) -> T {
    settings::pinned(|| role::as_ledger(f))
}

/// What of somebody's own the names and operators of a text may stand for.
pub fn named_by(tokens: &[Token], path: &str) -> Vec<Object> {
    let mut names = BTreeSet::new();
    // Operators may be written without blanks between them.
    let mut operators = String::new();
    for token in tokens {
        match token {
            Token::Name(name) => {
                names.insert(name.clone());
                operators.push(' ');
            }
            Token::Other(text) if text.contains(|c| !"+-*/<>=~!@#%^&|`?".contains(c)) => operators.push(' '),
            Token::Other(text) => operators.push_str(text),
        }
    }
    let args = [names.into_iter().collect::<Vec<String>>().into(), operators.as_str().into()];
    let decode = |row: &spi::Row| {
        let oid = row.at::<pg_sys::Oid>(2).into();
        match row.at::<String>(1).as_str() {
            "function" => Object::Function(oid),
            "table" => Object::Relation(oid),
            "operator" => Object::Operator(oid),
            _ => Object::Type(oid),
        }
    };
    settings::for_query("UTC", path, || role::as_ledger(|| spi::latest(NAMED, &args, decode)))
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

// pgrx does not bind these. They may raise errors: `guarded` makes those Rust's.
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
    unsafe { guarded(|| sql_fn_parser_setup(state, info)) };
}

/// The queries of an SQL function's text, in which its parameters stand by their names; `None` where it has other commands, or
/// was dropped meanwhile: nothing locks it.
unsafe fn analysed(function: pg_sys::Oid, source: &str) -> Option<Vec<*mut pg_sys::Query>> {
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(function));
        if tuple.is_null() {
            return None;
        }
        // A polymorphic one has types only where it is called (42804).
        let info = guarded(|| prepare_sql_fn_parse_info(tuple, std::ptr::null_mut(), pg_sys::InvalidOid));
        let text = quote::c_string(source);
        let queries: Vec<*mut pg_sys::Query> = each::<pg_sys::RawStmt>(pg_sys::pg_parse_query(text.as_ptr()))
            .map(|raw| {
                pg_sys::parse_analyze_withcb(raw, text.as_ptr(), Some(set_up), info, std::ptr::null_mut())
            })
            .collect();
        pg_sys::ReleaseSysCache(tuple);
        let is_query = |query: &*mut pg_sys::Query| (**query).commandType != pg_sys::CmdType::CMD_UTILITY;
        queries.iter().all(is_query).then_some(queries)
    }
}

/// A function of somebody's own, as far as it can be read.
pub struct Body {
    /// `None` if it was dropped.
    pub function: Option<Function>,
    /// The queries of an SQL function's body; `None` where it has none, or they cannot be analysed by themselves.
    pub queries: Option<Vec<*mut pg_sys::Query>>,
    /// How what it calls is read.
    pub reading: Reading,
}

/// Reads a function.
pub fn body_of(oid: pg_sys::Oid, reading: &Reading) -> Body {
    let found = in_catalog(|| spi::latest(FUNCTION, &[oid.into()], Function::decode));
    let Some(function) = found.into_iter().next() else {
        return Body { function: None, queries: None, reading: reading.clone() };
    };
    let path = function.path.as_deref().map_or_else(|| reading.path.clone(), Into::into);
    let is_called = reading.is_called && function.definer.is_none_or(|definer| definer == role::caller());
    let queries = match (&function.source, &function.body) {
        // It was analysed when the function was made.
        (_, Some(body)) => {
            let body = quote::c_string(body);
            let mut queries = vec![];
            queries_in(unsafe { pg_sys::stringToNode(body.as_ptr()).cast() }, &mut queries);
            Some(queries)
        }
        (Some(source), None) if function.is_sql && is_called => {
            let analyse = || settings::for_query("UTC", &path, || unsafe { analysed(oid, source) });
            match subtransaction::attempt(analyse) {
                Ok(queries) => queries,
                Err(caught) if subtransaction::is_accident(&caught) => caught.rethrow(),
                Err(_) => None,
            }
        }
        _ => None,
    };
    Body { function: Some(function), queries, reading: Reading { path, is_called } }
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
    pub is_sql: bool,
    pub source: Option<String>,
    body: Option<String>,
    /// Expressions, such as the defaults of its arguments.
    pub stored: Vec<String>,
    /// Its own `search_path`.
    path: Option<String>,
    /// Functions that an aggregate is made of.
    pub inner: Vec<pg_sys::Oid>,
    types: Vec<pg_sys::Oid>,
    /// As whom it runs, if not as whoever calls it.
    definer: Option<pg_sys::Oid>,
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
            definer: row.get(10),
        }
    }
}

const FUNCTION: &str = include_str!("../../sql/query/reach_function.sql");
const TYPE: &str = include_str!("../../sql/query/reach_type.sql");
const TABLE: &str = include_str!("../../sql/query/reach_table.sql");
const NAMED: &str = include_str!("../../sql/query/reach_named.sql");

const POLICIES: &str = "SELECT p.polqual::pg_catalog.text FROM pg_catalog.pg_policy p
    JOIN pg_catalog.pg_class c ON c.oid = p.polrelid AND c.relrowsecurity
    WHERE p.polrelid = $1 AND p.polcmd IN ('r', '*') AND p.polqual IS NOT NULL";

/// Generated columns that are computed when they are read.
const COMPUTED: &str = "SELECT d.adbin::pg_catalog.text FROM pg_catalog.pg_attrdef d
    JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
    WHERE d.adrelid = $1 AND a.attgenerated = 'v' AND (a.attnum = ANY ($2) OR 0 = ANY ($2))";

const TYPE_EXPRESSIONS: &str = "SELECT c.conbin::pg_catalog.text FROM pg_catalog.pg_constraint c
    WHERE c.contypid = $1 AND c.conbin IS NOT NULL";

fn expressions(sql: &'static str, oid: pg_sys::Oid) -> Vec<String> {
    in_catalog(|| spi::latest(sql, &[oid.into()], |row| row.at(1)))
}

const COLUMN_TYPES: &str = "SELECT a.atttypid, a.attcollation FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND (a.attnum = ANY ($2) OR 0 = ANY ($2))";

/// A table or a view with the columns that are read of it, and what hides rows of it.
fn table(oid: pg_sys::Oid, columns: &Columns, hides_rows: bool) -> Option<Part> {
    let columns: Vec<i64> = columns.iter().map(|column| i64::from(*column)).collect();
    let args = [oid.into(), columns.into(), hides_rows.into()];
    let found = in_catalog(|| spi::latest(TABLE, &args, |row| (row.at::<String>(1), row.at::<String>(2))));
    let (kind, definition) = found.into_iter().next()?;
    (kind == "table" || !definition.is_empty()).then(|| Part::new(&kind, quote::relation(oid), definition))
}

const OPERATOR: &str = "SELECT o.oid::pg_catalog.regoperator::pg_catalog.text,
        pg_catalog.concat_ws(' ', o.oprcode::pg_catalog.oid::pg_catalog.regprocedure,
                             'sorted by ' || NULLIF($2, 0::pg_catalog.oid)::pg_catalog.regprocedure::pg_catalog.text)
    FROM pg_catalog.pg_operator o WHERE o.oid = $1";

fn operator_part(operator: u32, comparing: u32) -> Option<Part> {
    let args = [pg_sys::Oid::from(operator).into(), pg_sys::Oid::from(comparing).into()];
    let decode = |row: &spi::Row| Part::new("operator", row.at::<String>(1), row.at::<String>(2));
    in_catalog(|| spi::latest(OPERATOR, &args, decode)).into_iter().next()
}

/// Those that somebody made, of conversions from ($1) and to ($2).
const CASTS: &str = "SELECT pg_catalog.format('%s AS %s', c.castsource::pg_catalog.regtype, c.casttarget::pg_catalog.regtype),
        pg_catalog.concat_ws(' ', c.castmethod, NULLIF(c.castfunc, 0::pg_catalog.oid)::pg_catalog.regprocedure)
    FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.oid[]), pg_catalog.unnest($2::pg_catalog.oid[])) t (source, target)
    JOIN pg_catalog.pg_cast c ON (c.castsource, c.casttarget) = (t.source, t.target)
    WHERE c.oid >= 16384";

fn casts(casts: &BTreeSet<(u32, u32)>) -> Vec<Part> {
    let args = [
        casts.iter().map(|(source, _)| i64::from(*source)).collect::<Vec<i64>>().into(),
        casts.iter().map(|(_, target)| i64::from(*target)).collect::<Vec<i64>>().into(),
    ];
    in_catalog(|| {
        spi::latest(CASTS, &args, |row| Part::new("cast", row.at::<String>(1), row.at::<String>(2)))
    })
}

const COLLATION: &str = "SELECT pg_catalog.format('%I.%I', n.nspname, c.collname),
        pg_catalog.concat_ws(' ', c.collprovider, c.collisdeterministic,
                             pg_catalog.to_jsonb(c) - '{oid,collname,collnamespace,collowner,collversion}'::pg_catalog.text[])
    FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = $1";

fn collations(oid: pg_sys::Oid) -> Option<Part> {
    let decode = |row: &spi::Row| Part::new("collation", row.at::<String>(1), row.at::<String>(2));
    in_catalog(|| spi::latest(COLLATION, &[oid.into()], decode)).into_iter().next()
}

/// A text search configuration with the dictionaries that it looks words up in.
const CONFIGURATION: &str = "SELECT pg_catalog.format('%I.%I', n.nspname, c.cfgname), COALESCE((
        SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', m.maptokentype, d.dictname, t.tmplname, d.dictinitoption), ', '
                                     ORDER BY m.maptokentype, m.mapseqno)
        FROM pg_catalog.pg_ts_config_map m
        JOIN pg_catalog.pg_ts_dict d ON d.oid = m.mapdict
        JOIN pg_catalog.pg_ts_template t ON t.oid = d.dicttemplate
        WHERE m.mapcfg = c.oid), '')
    FROM pg_catalog.pg_ts_config c JOIN pg_catalog.pg_namespace n ON n.oid = c.cfgnamespace WHERE c.oid = $1";

fn configurations(oid: pg_sys::Oid) -> Option<Part> {
    let decode = |row: &spi::Row| Part::new("text search", row.at::<String>(1), row.at::<String>(2));
    in_catalog(|| spi::latest(CONFIGURATION, &[oid.into()], decode)).into_iter().next()
}
