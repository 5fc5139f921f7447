//! By which of its columns each table of a query is restricted to the window.
//!
//! A comparison with $1 or $2 bounds a column from below, from above, or both. Bounds flow: through equalities and comparisons
//! between columns, from a subquery's columns to whoever reads them, and back into the subquery where PostgreSQL itself
//! could push the condition down. Functions of one column count as the column: what matters here is which rows can be
//! reached at all, and an audit of rows outside the window runs at each publication anyway.

use crate::postgres::canonical::{each, is};
use crate::postgres::reach::{self, Reading, is_builtin};
use crate::postgres::walk;
use pgrx::pg_sys;
use pgrx::pg_sys::NodeTag as T;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CStr;
use std::rc::Rc;

/// From which sides something is bounded.
pub type Bounds = u8;
pub const LOW: Bounds = 1;
pub const HIGH: Bounds = 2;
pub const BOTH: Bounds = LOW | HIGH;

const MOMENTS: [pg_sys::Oid; 3] = [pg_sys::DATEOID, pg_sys::TIMESTAMPOID, pg_sys::TIMESTAMPTZOID];

type Query = *mut pg_sys::Query;
type Range = *mut pg_sys::RangeTblEntry;

/// A column of a range of a query of the scope; 0 is some of its columns, together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Column {
    level: usize,
    pub range: i32,
    pub attribute: i16,
}

/// What a side of a comparison is, as far as bounds go.
#[derive(Debug, Clone)]
enum Term {
    /// Of one column; of several where a join merges them.
    Columns(Vec<Column>),
    /// One of several, which are of more than one range.
    Chosen(Choice, Vec<Term>),
    /// A value that is the same for all rows.
    Fixed(Bounds),
    Nothing,
}

/// Which of several terms it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// The first that is not NULL.
    First,
    Greatest,
    Least,
}

impl Term {
    /// The columns that are bounded where the term is, and how.
    fn bounded(&self, bounds: Bounds) -> Vec<(Column, Bounds)> {
        let of = |terms: &[Self], bounds| terms.iter().flat_map(|term| term.bounded(bounds)).collect();
        match self {
            Self::Columns(columns) => columns.iter().map(|column| (*column, bounds)).collect(),
            Self::Chosen(Choice::First, terms) => of(&terms[..1], bounds),
            Self::Chosen(Choice::Greatest, terms) => of(terms, bounds & HIGH),
            Self::Chosen(Choice::Least, terms) => of(terms, bounds & LOW),
            Self::Fixed(_) | Self::Nothing => vec![],
        }
    }
}

/// Bounds that go from one term to another.
struct Flow(Term, Term, Bounds);

struct Level {
    query: Query,
    bounds: BTreeMap<(i32, i16), Bounds>,
    /// Columns of the two sides of a full join that its condition compares: where a row has both, they bound each other.
    paired: BTreeSet<(Column, Column)>,
}

impl Level {
    fn new(query: Query) -> Self {
        Self { query, bounds: BTreeMap::new(), paired: BTreeSet::new() }
    }
}

/// A query inside those around it, and the parameters that it may name.
#[derive(Default)]
pub struct Scope {
    levels: Vec<Level>,
    parameters: Vec<Bounds>,
    /// How the texts of functions are read.
    reading: Reading,
    /// How the columns that queries give are bounded, by their addresses: an expression is looked at more than once, and so
    /// would be the subqueries in it, at each depth again. It holds while the queries around them stay as they are.
    known: HashMap<usize, Vec<Bounds>>,
    /// The same of functions, by how they are read and their arguments bounded.
    bodies: Rc<RefCell<HashMap<Call, Vec<Bounds>>>>,
}

type Call = (pg_sys::Oid, Rc<str>, bool, Vec<Bounds>);

/// The range with that number.
pub unsafe fn range_of(query: Query, number: i32) -> Range {
    unsafe { pg_sys::list_nth((*query).rtable, number - 1).cast() }
}

/// The columns that a query gives, without what only sorts.
pub unsafe fn entries(query: Query) -> Vec<*mut pg_sys::TargetEntry> {
    unsafe { each::<pg_sys::TargetEntry>((*query).targetList).filter(|entry| !(**entry).resjunk).collect() }
}

/// The name of a function, if PostgreSQL brings it.
pub fn builtin_name(function: pg_sys::Oid) -> Option<String> {
    if !is_builtin(function) {
        return None;
    }
    let name = unsafe { pg_sys::get_func_name(function) };
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// The numbers of the ranges below a node of FROM.
unsafe fn ranges_below(node: *mut pg_sys::Node, found: &mut Vec<i32>) {
    unsafe {
        if node.is_null() {
            return;
        }
        match (*node).type_ {
            T::T_RangeTblRef => found.push((*node.cast::<pg_sys::RangeTblRef>()).rtindex),
            T::T_JoinExpr => {
                let join: *mut pg_sys::JoinExpr = node.cast();
                ranges_below((*join).larg, found);
                ranges_below((*join).rarg, found);
            }
            T::T_FromExpr => {
                for item in each::<pg_sys::Node>((*node.cast::<pg_sys::FromExpr>()).fromlist) {
                    ranges_below(item, found);
                }
            }
            T::T_SetOperationStmt => {
                let operation: *mut pg_sys::SetOperationStmt = node.cast();
                ranges_below((*operation).larg, found);
                ranges_below((*operation).rarg, found);
            }
            _ => {}
        }
    }
}

/// The ranges that UNION and the like put together; none for a plain query.
pub unsafe fn arms(query: Query) -> Vec<i32> {
    let mut found = vec![];
    unsafe { ranges_below((*query).setOperations, &mut found) };
    found
}

/// The ranges that a query reads. The rules of views have others beside, before PostgreSQL 16.
pub unsafe fn read(query: Query) -> Vec<i32> {
    let mut found = unsafe { arms(query) };
    unsafe { ranges_below((*query).jointree.cast(), &mut found) };
    found
}

/// The CTE that a range refers to, and how many levels up the query is that has it.
unsafe fn cte_of(query: Query, range: Range) -> Option<*mut pg_sys::CommonTableExpr> {
    unsafe {
        let wanted = CStr::from_ptr((*range).ctename);
        each::<pg_sys::CommonTableExpr>((*query).cteList)
            .find(|cte| CStr::from_ptr((**cte).ctename) == wanted)
    }
}

/// What an expression is made of.
struct Collected<'a> {
    scope: &'a mut Scope,
    columns: BTreeSet<Column>,
    fixed: Vec<Bounds>,
    is_opaque: bool,
    /// Whether it may give a value where its columns are NULL.
    is_lax: bool,
    /// Whether it is computed over many rows.
    is_computed: bool,
}

/// Whether a call gives a part of a time that comes again, as its hour.
unsafe fn is_part(call: *mut pg_sys::FuncExpr) -> bool {
    unsafe {
        let name = builtin_name((*call).funcid);
        if !matches!(name.as_deref(), Some("extract" | "date_part")) {
            return false;
        }
        let field = constant_text(pg_sys::list_nth((*call).args, 0).cast());
        !field.is_some_and(|field| ["year", "epoch", "julian"].contains(&field.to_lowercase().as_str()))
    }
}

/// The arguments of a call that say which moment it gives: by the name of a zone that moves less than a day.
unsafe fn arguments(call: *mut pg_sys::FuncExpr) -> Vec<*mut pg_sys::Node> {
    unsafe {
        let mut arguments: Vec<*mut pg_sys::Node> = each((*call).args).collect();
        match (builtin_name((*call).funcid).as_deref(), arguments.len()) {
            (Some("timezone"), 2) if pg_sys::exprType(arguments[0]) == pg_sys::TEXTOID => {
                arguments.remove(0);
            }
            (Some("date_trunc"), 3) => arguments.truncate(2),
            _ => {}
        }
        arguments
    }
}

/// The text that a constant holds.
pub unsafe fn constant_text(node: *mut pg_sys::Node) -> Option<String> {
    unsafe {
        let mut node = node;
        while is(node, T::T_RelabelType) {
            node = (*node.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        if !is(node, T::T_Const) {
            return None;
        }
        let constant: *mut pg_sys::Const = node.cast();
        if !(*constant).constisnull && (*constant).consttype == pg_sys::CSTRINGOID {
            let text: *const std::ffi::c_char = (*constant).constvalue.cast_mut_ptr();
            return Some(CStr::from_ptr(text).to_string_lossy().into_owned());
        }
        let is_text =
            [pg_sys::TEXTOID, pg_sys::VARCHAROID, pg_sys::BPCHAROID].contains(&(*constant).consttype);
        if (*constant).constisnull || !is_text {
            return None;
        }
        let text = pg_sys::text_to_cstring((*constant).constvalue.cast_mut_ptr());
        Some(CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

impl Collected<'_> {
    unsafe fn collect(&mut self, node: *mut pg_sys::Node) {
        // With each node the level whose ranges its unqualified columns are of.
        let mut pending = vec![(node, self.scope.levels.len().saturating_sub(1))];
        while let Some((node, base)) = pending.pop() {
            if node.is_null() {
                continue;
            }
            unsafe {
                match (*node).type_ {
                    T::T_Var => pending.extend(self.variable(node.cast(), base)),
                    T::T_Param => {
                        let parameter: *mut pg_sys::Param = node.cast();
                        match (*parameter).paramkind {
                            pg_sys::ParamKind::PARAM_EXTERN => {
                                let bounds = self.scope.parameters.get((*parameter).paramid as usize - 1);
                                self.fixed.push(bounds.copied().unwrap_or(0));
                            }
                            _ => self.is_opaque = true,
                        }
                    }
                    T::T_SubLink => {
                        let link: *mut pg_sys::SubLink = node.cast();
                        let is_value =
                            [pg_sys::SubLinkType::EXPR_SUBLINK, pg_sys::SubLinkType::ARRAY_SUBLINK]
                                .contains(&(*link).subLinkType);
                        if is_value && base + 1 == self.scope.levels.len() {
                            let outputs = self.scope.outputs((*link).subselect.cast());
                            self.fixed.push(outputs.first().copied().unwrap_or(0));
                        } else {
                            self.is_opaque = true;
                        }
                    }
                    tag => {
                        match tag {
                            T::T_Aggref | T::T_WindowFunc => self.is_computed = true,
                            T::T_CoalesceExpr | T::T_CaseExpr | T::T_MinMaxExpr => self.is_lax = true,
                            T::T_FuncExpr => self.is_opaque |= is_part(node.cast()),
                            _ => {}
                        }
                        let inner = match tag {
                            T::T_FuncExpr => arguments(node.cast()),
                            _ => walk::children(node, 0),
                        };
                        pending.extend(inner.into_iter().map(|child| (child, base)));
                    }
                }
            }
        }
    }

    /// Takes a column, or answers what it stands for.
    unsafe fn variable(
        &mut self,
        variable: *mut pg_sys::Var,
        base: usize,
    ) -> Option<(*mut pg_sys::Node, usize)> {
        unsafe {
            let up = (*variable).varlevelsup as usize;
            let Some(level) = base.checked_sub(up).filter(|level| *level < self.scope.levels.len()) else {
                self.is_opaque = true;
                return None;
            };
            let query = self.scope.levels[level].query;
            let range = range_of(query, (*variable).varno);
            if let Some(inner) = alias_of(range, (*variable).varattno) {
                return Some((inner, level));
            }
            let attribute = (*variable).varattno.max(0);
            self.columns.insert(Column { level, range: (*variable).varno, attribute });
            None
        }
    }
}

/// The only argument of a call of a function of PostgreSQL's own that is no constant; NULL if there are more, or none.
unsafe fn argument(call: *mut pg_sys::FuncExpr) -> *mut pg_sys::Node {
    unsafe {
        let mut varying = arguments(call).into_iter().filter(|argument| !is(*argument, T::T_Const));
        match (varying.next(), varying.next()) {
            (Some(only), None) if is_builtin((*call).funcid) && !is_part(call) => only,
            _ => std::ptr::null_mut(),
        }
    }
}

/// What a column of a join or of a grouping stands for.
unsafe fn alias_of(range: Range, attribute: i16) -> Option<*mut pg_sys::Node> {
    unsafe {
        let list = match (*range).rtekind {
            pg_sys::RTEKind::RTE_JOIN => (*range).joinaliasvars,
            #[cfg(feature = "pg18")]
            pg_sys::RTEKind::RTE_GROUP => (*range).groupexprs,
            _ => return None,
        };
        (attribute > 0).then(|| pg_sys::list_nth(list, i32::from(attribute) - 1).cast())
    }
}

impl Scope {
    /// A query that stands by itself, with parameters that are bounded so.
    pub fn new(parameters: Vec<Bounds>, reading: Reading) -> Self {
        Self { parameters, reading, ..Self::default() }
    }

    fn top(&self) -> usize {
        self.levels.len() - 1
    }

    fn collected(&mut self, node: *mut pg_sys::Node) -> Collected<'_> {
        let mut collected = Collected {
            scope: self,
            columns: BTreeSet::new(),
            fixed: vec![],
            is_opaque: false,
            is_lax: false,
            is_computed: false,
        };
        unsafe { collected.collect(node) };
        collected
    }

    fn term(&mut self, node: *mut pg_sys::Node) -> Term {
        if let Some(merged) = unsafe { self.merged(node) } {
            return Term::Columns(merged);
        }
        let collected = self.collected(node);
        if collected.is_opaque {
            return Term::Nothing;
        }
        let columns: Vec<Column> = collected.columns.into_iter().collect();
        match columns[..] {
            [] if collected.fixed.is_empty() => Term::Nothing,
            [] => Term::Fixed(collected.fixed.iter().fold(BOTH, |all, one| all & one)),
            [column] => Term::Columns(vec![column]),
            [first, ..] if columns.iter().all(|c| (c.level, c.range) == (first.level, first.range)) => {
                Term::Columns(vec![Column { attribute: 0, ..first }])
            }
            _ => unsafe { self.chosen(node) }.unwrap_or(Term::Nothing),
        }
    }

    /// What COALESCE, GREATEST and LEAST choose from.
    unsafe fn chosen(&mut self, node: *mut pg_sys::Node) -> Option<Term> {
        unsafe {
            // They choose from each other.
            pg_sys::check_stack_depth();
            let node = self.core(node);
            let (choice, arguments) = if is(node, T::T_CoalesceExpr) {
                (Choice::First, (*node.cast::<pg_sys::CoalesceExpr>()).args)
            } else if is(node, T::T_MinMaxExpr) {
                let extreme: *mut pg_sys::MinMaxExpr = node.cast();
                let is_greatest = (*extreme).op == pg_sys::MinMaxOp::IS_GREATEST;
                (if is_greatest { Choice::Greatest } else { Choice::Least }, (*extreme).args)
            } else {
                return None;
            };
            let arguments = each::<pg_sys::Node>(arguments).filter(|argument| !is(*argument, T::T_Const));
            let terms: Vec<Term> = arguments.map(|argument| self.term(argument)).collect();
            Some(match (choice, &terms[..]) {
                (_, []) => return None,
                (Choice::First, [Term::Columns(one), Term::Columns(other)])
                    if self.are_paired(one, other) =>
                {
                    Term::Columns([&one[..], other].concat())
                }
                _ => Term::Chosen(choice, terms),
            })
        }
    }

    fn are_paired(&self, one: &[Column], other: &[Column]) -> bool {
        let paired = &self.levels[self.top()].paired;
        matches!((one, other), ([one], [other]) if paired.contains(&(*one, *other)))
    }

    /// The expression that an expression is a function of, and of nothing else but constants.
    unsafe fn core(&self, node: *mut pg_sys::Node) -> *mut pg_sys::Node {
        let mut node = node;
        loop {
            let inner = unsafe {
                match (*node).type_ {
                    T::T_RelabelType => (*node.cast::<pg_sys::RelabelType>()).arg.cast(),
                    T::T_Var => self.alias(node.cast()),
                    T::T_FuncExpr => argument(node.cast()),
                    _ => return node,
                }
            };
            if inner.is_null() {
                return node;
            }
            node = inner;
        }
    }

    /// What a column of a join or of a grouping of the innermost query stands for; NULL if it stands for itself.
    unsafe fn alias(&self, variable: *mut pg_sys::Var) -> *mut pg_sys::Node {
        unsafe {
            if (*variable).varlevelsup != 0 || self.levels.is_empty() {
                return std::ptr::null_mut();
            }
            let range = range_of(self.levels[self.top()].query, (*variable).varno);
            alias_of(range, (*variable).varattno).unwrap_or(std::ptr::null_mut())
        }
    }

    /// The columns that a join merges into one (USING of a full join): a bound of it bounds each.
    unsafe fn merged(&mut self, node: *mut pg_sys::Node) -> Option<Vec<Column>> {
        unsafe {
            if !is(node, T::T_Var) || (*node.cast::<pg_sys::Var>()).varlevelsup != 0 || self.levels.is_empty()
            {
                return None;
            }
            let variable: *mut pg_sys::Var = node.cast();
            let range = range_of(self.levels[self.top()].query, (*variable).varno);
            let mut inner = alias_of(range, (*variable).varattno)?;
            if is(inner, T::T_Var) {
                return self.merged(inner);
            }
            if (*range).rtekind != pg_sys::RTEKind::RTE_JOIN || !is(inner, T::T_CoalesceExpr) {
                return None;
            }
            inner = (*inner.cast::<pg_sys::CoalesceExpr>()).args.cast();
            let mut columns = vec![];
            for argument in each::<pg_sys::Node>(inner.cast()) {
                match self.term(argument) {
                    Term::Columns(of) => columns.extend(of),
                    _ => return None,
                }
            }
            Some(columns)
        }
    }

    fn bounds_of_term(&self, term: &Term) -> Bounds {
        match term {
            Term::Columns(columns) => columns.iter().fold(BOTH, |all, column| all & self.bounds_of(*column)),
            Term::Chosen(choice, terms) => {
                let each = || terms.iter().map(|term| self.bounds_of_term(term));
                let (all, any) =
                    (each().fold(BOTH, |all, one| all & one), each().fold(0, |any, one| any | one));
                match choice {
                    Choice::First => all,
                    Choice::Greatest => any & LOW | all & HIGH,
                    Choice::Least => any & HIGH | all & LOW,
                }
            }
            Term::Fixed(bounds) => *bounds,
            Term::Nothing => 0,
        }
    }

    pub fn bounds_of(&self, column: Column) -> Bounds {
        self.levels[column.level].bounds.get(&(column.range, column.attribute)).copied().unwrap_or(0)
    }

    /// How an expression of the innermost query is bounded.
    pub fn bounds_of_expression(&mut self, node: *mut pg_sys::Node) -> Bounds {
        let term = self.term(node);
        let bounds = self.bounds_of_term(&term);
        // Of columns of one range more may be known, of each.
        match unsafe { self.chosen(node) } {
            Some(chosen) => bounds | self.bounds_of_term(&chosen),
            None => bounds,
        }
    }

    /// The column of the innermost query that an expression is of, if there is one.
    pub fn column_of(&mut self, node: *mut pg_sys::Node) -> Option<Column> {
        match self.term(node) {
            Term::Columns(columns) => columns.first().copied().filter(|column| column.level == self.top()),
            _ => None,
        }
    }

    /// How the rows of a range of the innermost query are bounded, by whichever of its columns.
    pub fn bounds_of_range(&self, range: i32) -> Bounds {
        let bounds = &self.levels[self.top()].bounds;
        bounds.iter().filter(|((of, _), _)| *of == range).fold(0, |all, (_, one)| all | one)
    }

    /// How each column of a range of the innermost query is bounded.
    pub fn demanded(&self, range: i32, width: usize) -> Vec<Bounds> {
        let bounds = &self.levels[self.top()].bounds;
        (1..=width).map(|place| bounds.get(&(range, place as i16)).copied().unwrap_or(0)).collect()
    }

    /// The relation behind a range of the query that many levels up.
    pub fn relation(&self, range: i32, up: usize) -> Option<pg_sys::Oid> {
        let level = self.levels.len().checked_sub(up + 1)?;
        let range = unsafe { range_of(self.levels[level].query, range) };
        let is_relation = unsafe { (*range).rtekind == pg_sys::RTEKind::RTE_RELATION };
        is_relation.then(|| unsafe { (*range).relid })
    }

    /// Whether the innermost query reads nothing but a subquery that gives its rows in order.
    pub fn is_sorted(&self) -> bool {
        let Some(level) = self.levels.last() else { return false };
        unsafe {
            let from: Vec<*mut pg_sys::Node> = each((*(*level.query).jointree).fromlist).collect();
            let [only] = from[..] else { return false };
            if !is(only, T::T_RangeTblRef) || !(*level.query).groupClause.is_null() {
                return false;
            }
            let range = range_of(level.query, (*only.cast::<pg_sys::RangeTblRef>()).rtindex);
            (*range).rtekind == pg_sys::RTEKind::RTE_SUBQUERY && !(*(*range).subquery).sortClause.is_null()
        }
    }

    /// The window of the innermost query with that number.
    pub fn window(&self, number: u32) -> Option<*mut pg_sys::WindowClause> {
        let level = self.levels.last()?;
        unsafe {
            each::<pg_sys::WindowClause>((*level.query).windowClause)
                .find(|window| (**window).winref == number)
        }
    }

    pub fn leave(&mut self) {
        self.levels.pop();
        self.known.clear();
    }

    /// How the columns that a query gives are bounded by what stands in it.
    fn outputs(&mut self, query: Query) -> Vec<Bounds> {
        unsafe {
            if (*query).commandType != pg_sys::CmdType::CMD_SELECT {
                return vec![];
            }
            if let Some(known) = self.known.get(&(query as usize)) {
                return known.clone();
            }
            self.open(query, &[]);
            let arms = arms(query);
            let outputs: Vec<Bounds> = entries(query)
                .iter()
                .enumerate()
                .map(|(place, entry)| match arms[..] {
                    [] => self.bounds_of_expression((**entry).expr.cast()),
                    _ => {
                        let bounds = &self.levels[self.top()].bounds;
                        let of = |arm: &i32| bounds.get(&(*arm, place as i16 + 1)).copied().unwrap_or(0);
                        arms.iter().fold(BOTH, |all, arm| all & of(arm))
                    }
                })
                .collect();
            self.levels.pop();
            self.known.insert(query as usize, outputs.clone());
            outputs
        }
    }

    /// Runs `f` in the scope of the CTE that a range of the innermost query refers to.
    pub unsafe fn within_cte<R>(
        &mut self,
        range: Range,
        f: impl FnOnce(&mut Self, *mut pg_sys::CommonTableExpr) -> R,
    ) -> Option<R> {
        unsafe {
            let level = self.top().checked_sub((*range).ctelevelsup as usize)?;
            let cte = cte_of(self.levels[level].query, range)?;
            let inner = self.levels.split_off(level + 1);
            let result = f(self, cte);
            self.levels.extend(inner);
            Some(result)
        }
    }

    unsafe fn cte_outputs(&mut self, range: Range) -> Vec<Bounds> {
        unsafe {
            let outputs = self.within_cte(range, |scope, cte| {
                let query: Query = (*cte).ctequery.cast();
                if !(*range).self_reference {
                    return scope.outputs(query);
                }
                // What it is while it is computed: as its first part gives it.
                let operation: *mut pg_sys::SetOperationStmt = (*query).setOperations.cast();
                if !is(operation.cast(), T::T_SetOperationStmt) || !is((*operation).larg, T::T_RangeTblRef) {
                    return vec![];
                }
                let first = (*(*operation).larg.cast::<pg_sys::RangeTblRef>()).rtindex;
                scope.levels.push(Level::new(query));
                let outputs = scope.outputs((*range_of(query, first)).subquery);
                scope.levels.pop();
                outputs
            });
            outputs.unwrap_or_default()
        }
    }

    /// How the arguments of a call in the innermost query are bounded, by the numbers of the parameters.
    pub unsafe fn arguments(&mut self, call: *mut pg_sys::FuncExpr) -> Vec<Bounds> {
        unsafe {
            let mut bounds = vec![];
            for (place, argument) in each::<pg_sys::Node>((*call).args).enumerate() {
                let (place, node) = if is(argument, T::T_NamedArgExpr) {
                    let named: *mut pg_sys::NamedArgExpr = argument.cast();
                    ((*named).argnumber as usize, (*named).arg.cast())
                } else {
                    (place, argument)
                };
                if bounds.len() <= place {
                    bounds.resize(place + 1, 0);
                }
                bounds[place] = self.bounds_of_expression(node);
            }
            bounds
        }
    }

    /// Goes into a query: a condition on what it gives bounds it too.
    pub fn enter(&mut self, query: Query, demanded: &[Bounds]) {
        self.open(query, demanded);
        self.known.clear();
    }

    fn open(&mut self, query: Query, demanded: &[Bounds]) {
        pgrx::check_for_interrupts!();
        // Queries in queries call this again.
        unsafe { pg_sys::check_stack_depth() };
        self.levels.push(Level::new(query));
        let mut flows = vec![];
        unsafe {
            let ranges: Vec<Range> = each((*query).rtable).collect();
            let is_lateral = |range: &Range| (**range).lateral;
            for (place, range) in ranges.iter().enumerate().filter(|(_, range)| !is_lateral(range)) {
                self.provide(place as i32 + 1, *range, &mut flows);
            }
            let having = self.having(query);
            let mut strict = self.strict((*(*query).jointree).quals);
            for condition in &having {
                strict.extend(self.strict(*condition));
            }
            self.join((*query).jointree.cast(), &strict, &mut flows);
            for condition in having {
                self.condition(condition, &mut flows);
            }
            self.demand(query, demanded, &mut flows);
            self.spread(&flows);
            for (place, range) in ranges.iter().enumerate().filter(|(_, range)| is_lateral(range)) {
                self.provide(place as i32 + 1, *range, &mut flows);
            }
            self.spread(&flows);
        }
    }

    fn spread(&mut self, flows: &[Flow]) {
        let top = self.top();
        loop {
            pgrx::check_for_interrupts!();
            let mut is_changed = false;
            for Flow(from, to, mask) in flows {
                let given = self.bounds_of_term(from) & mask;
                for (column, given) in to.bounded(given).into_iter().filter(|(column, _)| column.level == top)
                {
                    let bounds = self.levels[top].bounds.entry((column.range, column.attribute)).or_default();
                    is_changed |= given & !*bounds != 0;
                    *bounds |= given;
                }
            }
            if !is_changed {
                return;
            }
        }
    }

    /// What a range brings along by itself.
    unsafe fn provide(&mut self, number: i32, range: Range, flows: &mut Vec<Flow>) {
        use pg_sys::RTEKind::{RTE_CTE, RTE_FUNCTION, RTE_SUBQUERY, RTE_VALUES};
        let level = self.top();
        let column =
            |place: usize| Term::Columns(vec![Column { level, range: number, attribute: place as i16 + 1 }]);
        unsafe {
            let outputs = match (*range).rtekind {
                RTE_SUBQUERY => self.outputs((*range).subquery),
                RTE_CTE => self.cte_outputs(range),
                RTE_VALUES => {
                    let mut outputs: Vec<Bounds> = vec![];
                    for row in each::<pg_sys::List>((*range).values_lists) {
                        for (place, value) in each::<pg_sys::Node>(row).enumerate() {
                            if outputs.len() <= place {
                                outputs.push(BOTH);
                            }
                            outputs[place] &= self.bounds_of_expression(value);
                        }
                    }
                    outputs
                }
                RTE_FUNCTION => {
                    let mut first = 0;
                    for function in each::<pg_sys::RangeTblFunction>((*range).functions) {
                        let count = (*function).funccolcount as usize;
                        let body = self.body_outputs((*function).funcexpr);
                        let whole = self.term((*function).funcexpr);
                        for place in 0..count {
                            let own = body.get(place).copied().unwrap_or(0);
                            flows.push(Flow(Term::Fixed(own), column(first + place), BOTH));
                            if body.is_empty() {
                                flows.push(Flow(whole.clone(), column(first + place), BOTH));
                            }
                        }
                        first += count;
                    }
                    return;
                }
                _ => return,
            };
            flows.extend(
                outputs
                    .into_iter()
                    .enumerate()
                    .map(|(place, own)| Flow(Term::Fixed(own), column(place), BOTH)),
            );
        }
    }

    /// How what an SQL function gives is bounded; nothing where its body is not known.
    unsafe fn body_outputs(&mut self, call: *mut pg_sys::Node) -> Vec<Bounds> {
        unsafe {
            if !is(call, T::T_FuncExpr) || is_builtin((*call.cast::<pg_sys::FuncExpr>()).funcid) {
                return vec![];
            }
            let call: *mut pg_sys::FuncExpr = call.cast();
            let arguments = self.arguments(call);
            let Reading { path, is_called } = self.reading.clone();
            let key = ((*call).funcid, path, is_called, arguments.clone());
            if let Some(known) = self.bodies.borrow().get(&key) {
                return known.clone();
            }
            // A function that calls itself finds that nothing is known yet.
            self.bodies.borrow_mut().insert(key.clone(), vec![]);
            let reach::Body { queries, reading, .. } = reach::body_of((*call).funcid, &self.reading);
            let Some(last) = queries.as_deref().and_then(<[Query]>::last) else { return vec![] };
            let mut inner = Self { bodies: self.bodies.clone(), ..Self::new(arguments, reading) };
            let outputs = inner.outputs(*last);
            self.bodies.borrow_mut().insert(key, outputs.clone());
            outputs
        }
    }

    /// The conditions behind HAVING that are the same for all rows of a group: they count as if they stood behind WHERE.
    unsafe fn having(&mut self, query: Query) -> Vec<*mut pg_sys::Node> {
        unsafe {
            let mut found = vec![];
            // Of grouping sets not each has the column.
            let is_grouped = !(*query).groupClause.is_null() && (*query).groupingSets.is_null();
            let mut pending = vec![(*query).havingQual];
            while let Some(node) = pending.pop().filter(|node| is_grouped && !node.is_null()) {
                if is(node, T::T_BoolExpr)
                    && (*node.cast::<pg_sys::BoolExpr>()).boolop == pg_sys::BoolExprType::AND_EXPR
                {
                    pending.extend(each::<pg_sys::Node>((*node.cast::<pg_sys::BoolExpr>()).args));
                } else if !self.collected(node).is_computed {
                    found.push(node);
                }
            }
            found
        }
    }

    /// Where a condition on what the query gives may be put into it.
    unsafe fn demand(&mut self, query: Query, demanded: &[Bounds], flows: &mut Vec<Flow>) {
        unsafe {
            if !(*query).limitCount.is_null() || !(*query).limitOffset.is_null() {
                return;
            }
            let arms = arms(query);
            let level = self.top();
            for (place, entry) in entries(query).into_iter().enumerate() {
                let bounds = demanded.get(place).copied().unwrap_or(0);
                if bounds == 0 {
                    continue;
                }
                for arm in &arms {
                    let column = Column { level, range: *arm, attribute: place as i16 + 1 };
                    flows.push(Flow(Term::Fixed(bounds), Term::Columns(vec![column]), BOTH));
                }
                let is_in = |list| {
                    each::<pg_sys::SortGroupClause>(list)
                        .any(|clause| (*clause).tleSortGroupRef == (*entry).ressortgroupref)
                };
                let passes = arms.is_empty()
                    && each::<pg_sys::WindowClause>((*query).windowClause)
                        .all(|window| is_in((*window).partitionClause))
                    && (!(*query).hasDistinctOn || is_in((*query).distinctClause))
                    && !self.collected((*entry).expr.cast()).is_computed;
                if passes {
                    let column = self.term((*entry).expr.cast());
                    flows.push(Flow(Term::Fixed(bounds), column, BOTH));
                }
            }
        }
    }

    /// Ranges of which a condition takes no row that an outer join filled with NULL.
    unsafe fn strict(&mut self, quals: *mut pg_sys::Node) -> BTreeSet<i32> {
        unsafe {
            let mut ranges = BTreeSet::new();
            if quals.is_null() {
                return ranges;
            }
            pg_sys::check_stack_depth();
            match (*quals).type_ {
                T::T_BoolExpr
                    if (*quals.cast::<pg_sys::BoolExpr>()).boolop == pg_sys::BoolExprType::AND_EXPR =>
                {
                    for inner in each::<pg_sys::Node>((*quals.cast::<pg_sys::BoolExpr>()).args) {
                        ranges.extend(self.strict(inner));
                    }
                }
                T::T_OpExpr => {
                    for side in each::<pg_sys::Node>((*quals.cast::<pg_sys::OpExpr>()).args) {
                        let level = self.top();
                        let collected = self.collected(side);
                        if !collected.is_lax {
                            let own = collected.columns.iter().filter(|column| column.level == level);
                            ranges.extend(own.map(|column| column.range));
                        }
                    }
                }
                _ => {}
            }
            ranges
        }
    }

    unsafe fn join(&mut self, node: *mut pg_sys::Node, strict: &BTreeSet<i32>, flows: &mut Vec<Flow>) {
        use pg_sys::JoinType::{JOIN_FULL, JOIN_LEFT, JOIN_RIGHT};
        unsafe {
            if node.is_null() {
                return;
            }
            pg_sys::check_stack_depth();
            match (*node).type_ {
                T::T_FromExpr => {
                    let from: *mut pg_sys::FromExpr = node.cast();
                    for item in each::<pg_sys::Node>((*from).fromlist) {
                        self.join(item, strict, flows);
                    }
                    self.condition((*from).quals, flows);
                }
                T::T_JoinExpr => {
                    let join: *mut pg_sys::JoinExpr = node.cast();
                    self.join((*join).larg, strict, flows);
                    self.join((*join).rarg, strict, flows);
                    let mut own = vec![];
                    self.condition((*join).quals, &mut own);
                    let side = match (*join).jointype {
                        JOIN_LEFT => (*join).rarg,
                        JOIN_RIGHT => (*join).larg,
                        JOIN_FULL => {
                            self.pair(&own);
                            return;
                        }
                        _ => {
                            flows.extend(own);
                            return;
                        }
                    };
                    let mut optional = vec![];
                    ranges_below(side, &mut optional);
                    if optional.iter().any(|range| strict.contains(range)) {
                        flows.extend(own);
                        return;
                    }
                    // The other side keeps all its rows, whatever stands behind ON.
                    flows.extend(own.into_iter().filter(|Flow(_, to, _)| {
                        to.bounded(BOTH).iter().all(|(column, _)| optional.contains(&column.range))
                    }));
                }
                _ => {}
            }
        }
    }

    /// Takes down which columns the condition of a full join compares.
    fn pair(&mut self, own: &[Flow]) {
        let top = self.top();
        for flow in own {
            if let Flow(Term::Columns(from), Term::Columns(to), BOTH) = flow
                && let ([from], [to]) = (&from[..], &to[..])
            {
                self.levels[top].paired.insert((*from, *to));
            }
        }
    }

    /// What a condition that must be true says.
    unsafe fn condition(&mut self, node: *mut pg_sys::Node, flows: &mut Vec<Flow>) {
        unsafe {
            if node.is_null() {
                return;
            }
            pg_sys::check_stack_depth();
            match (*node).type_ {
                T::T_BoolExpr => self.logic(node.cast(), flows),
                T::T_OpExpr => {
                    let operator: *mut pg_sys::OpExpr = node.cast();
                    let sides: Vec<*mut pg_sys::Node> = each((*operator).args).collect();
                    if let [left, right] = sides[..] {
                        let name = operator_name((*operator).opno);
                        let [left, right] = self.moments(left, right);
                        compare(&name, left, right, flows);
                    }
                }
                // The first columns decide, but where they are equal.
                T::T_RowCompareExpr => {
                    let rows: *mut pg_sys::RowCompareExpr = node.cast();
                    let name = operator_name((*(*(*rows).opnos).elements).oid_value);
                    let left = self.term(pg_sys::list_nth((*rows).largs, 0).cast());
                    let right = self.term(pg_sys::list_nth((*rows).rargs, 0).cast());
                    compare(&name, left, right, flows);
                }
                T::T_ScalarArrayOpExpr => {
                    let operator: *mut pg_sys::ScalarArrayOpExpr = node.cast();
                    let sides: Vec<*mut pg_sys::Node> = each((*operator).args).collect();
                    if let [left, right] = sides[..]
                        && (*operator).useOr
                    {
                        let (left, right) = (self.term(left), self.term(right));
                        flows.push(Flow(right, left, taken(&operator_name((*operator).opno))));
                    }
                }
                T::T_SubLink => self.member(node.cast(), flows),
                T::T_BooleanTest => {
                    let test: *mut pg_sys::BooleanTest = node.cast();
                    if (*test).booltesttype == pg_sys::BoolTestType::IS_TRUE {
                        self.condition((*test).arg.cast(), flows);
                    }
                }
                T::T_FuncExpr => {
                    let call: *mut pg_sys::FuncExpr = node.cast();
                    if builtin_name((*call).funcid).as_deref() == Some("overlaps") {
                        let sides: Vec<Term> =
                            each::<pg_sys::Node>((*call).args).map(|side| self.term(side)).collect();
                        for (place, side) in sides.iter().enumerate() {
                            let other = sides[(place + 2) % sides.len()].clone();
                            flows.push(Flow(other, side.clone(), BOTH));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// What is compared; where it is how far a column lies from the window, and a constant, that column and the window.
    unsafe fn moments(&mut self, left: *mut pg_sys::Node, right: *mut pg_sys::Node) -> [Term; 2] {
        unsafe {
            if let Some(moments) = self.distance(left, right) {
                return moments;
            }
            if let Some([later, earlier]) = self.distance(right, left) {
                return [earlier, later];
            }
            [self.term(left), self.term(right)]
        }
    }

    /// The later and the earlier one of two moments, of which one is the window's, where their difference is compared with a
    /// constant.
    unsafe fn distance(&mut self, node: *mut pg_sys::Node, limit: *mut pg_sys::Node) -> Option<[Term; 2]> {
        unsafe {
            if !is(node, T::T_OpExpr) || !is(limit, T::T_Const) {
                return None;
            }
            let operator: *mut pg_sys::OpExpr = node.cast();
            let sides: Vec<*mut pg_sys::Node> = each((*operator).args).collect();
            let [later, earlier] = sides[..] else { return None };
            let are_moments = sides.iter().all(|side| MOMENTS.contains(&pg_sys::exprType(*side)));
            if !is_builtin((*operator).opno) || !are_moments || operator_name((*operator).opno) != "-" {
                return None;
            }
            let moments = [self.term(later), self.term(earlier)];
            moments.iter().any(|moment| matches!(moment, Term::Fixed(_))).then_some(moments)
        }
    }

    unsafe fn logic(&mut self, logic: *mut pg_sys::BoolExpr, flows: &mut Vec<Flow>) {
        unsafe {
            let arguments: Vec<*mut pg_sys::Node> = each((*logic).args).collect();
            match (*logic).boolop {
                pg_sys::BoolExprType::AND_EXPR => {
                    for argument in arguments {
                        self.condition(argument, flows);
                    }
                }
                // What each of them bounds by itself.
                pg_sys::BoolExprType::OR_EXPR => {
                    let mut common: Option<BTreeMap<Column, Bounds>> = None;
                    for argument in arguments {
                        let mut own = vec![];
                        self.condition(argument, &mut own);
                        let mut bounds: BTreeMap<Column, Bounds> = BTreeMap::new();
                        for Flow(from, to, mask) in own {
                            if let Term::Fixed(given) = from {
                                for (column, given) in to.bounded(given & mask) {
                                    *bounds.entry(column).or_default() |= given;
                                }
                            }
                        }
                        common = Some(match common {
                            None => bounds,
                            Some(before) => before
                                .into_iter()
                                .filter_map(|(column, one)| Some((column, one & bounds.get(&column)?)))
                                .collect(),
                        });
                    }
                    for (column, bounds) in common.unwrap_or_default() {
                        flows.push(Flow(Term::Fixed(bounds), Term::Columns(vec![column]), BOTH));
                    }
                }
                _ => {
                    let [inner] = arguments[..] else { return };
                    // IS NOT DISTINCT FROM
                    if is(inner, T::T_DistinctExpr) {
                        let sides: Vec<*mut pg_sys::Node> =
                            each((*inner.cast::<pg_sys::OpExpr>()).args).collect();
                        if let [left, right] = sides[..] {
                            let (left, right) = (self.term(left), self.term(right));
                            compare("=", left, right, flows);
                        }
                        return;
                    }
                    let negated = pg_sys::negate_clause(inner);
                    // Of what has no opposite it makes a NOT.
                    if is(inner, T::T_BoolExpr) || !is(negated, T::T_BoolExpr) {
                        self.condition(negated, flows);
                    }
                }
            }
        }
    }

    /// `x IN (SELECT …)`
    unsafe fn member(&mut self, link: *mut pg_sys::SubLink, flows: &mut Vec<Flow>) {
        unsafe {
            if (*link).subLinkType != pg_sys::SubLinkType::ANY_SUBLINK {
                return;
            }
            let outputs = self.outputs((*link).subselect.cast());
            for (place, side) in members(link) {
                let own = outputs.get(place).copied().unwrap_or(0);
                let side = self.term(side);
                flows.push(Flow(Term::Fixed(own), side, BOTH));
            }
        }
    }

    /// How the columns of a subquery behind IN are bounded by what they are compared with.
    pub unsafe fn demanded_of_members(&mut self, link: *mut pg_sys::SubLink) -> Vec<Bounds> {
        unsafe {
            let mut demanded = vec![];
            for (place, side) in members(link) {
                if demanded.len() <= place {
                    demanded.resize(place + 1, 0);
                }
                demanded[place] = self.bounds_of_expression(side);
            }
            demanded
        }
    }
}

/// The pairs that `(a, b) IN (SELECT …)` compares: the place of the subquery's column, and what it must equal.
unsafe fn members(link: *mut pg_sys::SubLink) -> Vec<(usize, *mut pg_sys::Node)> {
    unsafe {
        let mut found = vec![];
        let mut pending = vec![(*link).testexpr];
        while let Some(test) = pending.pop() {
            if is(test, T::T_BoolExpr) {
                pending.extend(each::<pg_sys::Node>((*test.cast::<pg_sys::BoolExpr>()).args));
            } else if is(test, T::T_OpExpr) {
                let operator: *mut pg_sys::OpExpr = test.cast();
                let sides: Vec<*mut pg_sys::Node> = each((*operator).args).collect();
                if let [left, right] = sides[..]
                    && operator_name((*operator).opno) == "="
                    && let Some(place) = sublink_parameter(right)
                {
                    found.push((place, left));
                }
            }
        }
        found
    }
}

/// The place of the subquery's column that a parameter stands for.
unsafe fn sublink_parameter(node: *mut pg_sys::Node) -> Option<usize> {
    unsafe {
        let mut node = node;
        loop {
            match (*node).type_ {
                T::T_RelabelType => node = (*node.cast::<pg_sys::RelabelType>()).arg.cast(),
                T::T_FuncExpr => node = pg_sys::list_nth((*node.cast::<pg_sys::FuncExpr>()).args, 0).cast(),
                _ => break,
            }
            if node.is_null() {
                return None;
            }
        }
        let parameter: *mut pg_sys::Param = node.cast();
        let is_sublink = is(node, T::T_Param) && (*parameter).paramkind == pg_sys::ParamKind::PARAM_SUBLINK;
        is_sublink.then(|| (*parameter).paramid as usize - 1)
    }
}

fn operator_name(operator: pg_sys::Oid) -> String {
    let name = unsafe { pg_sys::get_opname(operator) };
    if name.is_null() {
        return String::new();
    }
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Which bounds of its right side an operator gives to its left one.
fn taken(operator: &str) -> Bounds {
    match operator {
        "=" | "<@" | "@>" | "&&" => BOTH,
        ">" | ">=" => LOW,
        "<" | "<=" => HIGH,
        _ => 0,
    }
}

fn compare(operator: &str, left: Term, right: Term, flows: &mut Vec<Flow>) {
    let mask = taken(operator);
    let mirrored = match mask {
        LOW => HIGH,
        HIGH => LOW,
        same => same,
    };
    flows.push(Flow(right.clone(), left.clone(), mask));
    flows.push(Flow(left, right, mirrored));
}
