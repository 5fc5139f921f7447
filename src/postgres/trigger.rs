//! What a trigger was fired for, without a copy of anything: it is asked with every row.

use pgrx::pg_sys;
use std::ffi::CStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Insert,
    Update,
    Delete,
    Truncate,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Insert => "INSERT",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Truncate => "TRUNCATE",
        }
    }
}

/// One row of the table, of a form that the executor owns.
#[derive(Clone, Copy)]
pub struct Row(*mut pg_sys::TupleTableSlot);

impl Row {
    /// The column with a number, counted from 1; `None` for NULL.
    pub fn value(self, place: i16) -> Option<pg_sys::Datum> {
        unsafe {
            if (*self.0).tts_nvalid < place {
                pg_sys::slot_getsomeattrs_int(self.0, place.into());
            }
            let at = place as usize - 1;
            (!*(*self.0).tts_isnull.add(at)).then(|| *(*self.0).tts_values.add(at))
        }
    }
}

/// One call of a trigger function.
#[derive(Clone, Copy)]
pub struct Firing(*mut pg_sys::TriggerData);

impl Firing {
    /// `None` where the function was not called as a trigger.
    ///
    /// # Safety
    /// `call` is that of a function that is being called.
    pub unsafe fn of(call: pg_sys::FunctionCallInfo) -> Option<Self> {
        unsafe {
            let context = (*call).context;
            let is_trigger = !context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData;
            is_trigger.then(|| Self(context.cast()))
        }
    }

    fn event(self) -> u32 {
        unsafe { (*self.0).tg_event }
    }

    pub fn operation(self) -> Operation {
        match self.event() & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => Operation::Insert,
            pg_sys::TRIGGER_EVENT_UPDATE => Operation::Update,
            pg_sys::TRIGGER_EVENT_DELETE => Operation::Delete,
            _ => Operation::Truncate,
        }
    }

    /// Whether it was fired for a row that has been written as it is now.
    pub fn is_after_row(self) -> bool {
        let wanted = pg_sys::TRIGGER_EVENT_ROW | pg_sys::TRIGGER_EVENT_AFTER;
        self.event() & (pg_sys::TRIGGER_EVENT_ROW | pg_sys::TRIGGER_EVENT_TIMINGMASK) == wanted
    }

    /// The table that the row is in: a partition, where the trigger is a partitioned table's.
    pub fn relation(self) -> pg_sys::Oid {
        unsafe { (*(*self.0).tg_relation).rd_id }
    }

    /// The row as it was, and as it is.
    pub fn rows(self) -> [Option<Row>; 2] {
        let (first, second) = unsafe { ((*self.0).tg_trigslot, (*self.0).tg_newslot) };
        match self.operation() {
            Operation::Insert => [None, Some(Row(first))],
            Operation::Update => [Some(Row(first)), Some(Row(second))],
            Operation::Delete => [Some(Row(first)), None],
            Operation::Truncate => [None, None],
        }
    }

    /// The first argument that the trigger was made with; empty without one.
    pub fn argument(&self) -> &CStr {
        unsafe {
            let trigger = (*self.0).tg_trigger;
            if (*trigger).tgnargs < 1 { c"" } else { CStr::from_ptr(*(*trigger).tgargs) }
        }
    }

    /// Whether its table also has a row trigger with the same function.
    pub fn has_row_trigger(self) -> bool {
        unsafe {
            let all = (*(*self.0).tg_relation).trigdesc;
            let function = (*(*self.0).tg_trigger).tgfoid;
            (0..(*all).numtriggers as usize).any(|i| {
                let trigger = &*(*all).triggers.add(i);
                trigger.tgfoid == function && trigger.tgtype & pg_sys::TRIGGER_TYPE_ROW as i16 != 0
            })
        }
    }
}
