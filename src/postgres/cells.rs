//! Rows as text, and text as rows again: what the output function of a type writes, its input function reads. Every dump
//! relies on that, so that it holds for types that nobody here knows of. A cast to text would not do: anybody who owns a
//! type can define another one.
//!
//! The settings of [`for_text`](crate::postgres::settings::for_text) must be in force both ways.

use crate::postgres::scratch::Scratch;
use pgrx::{PgTupleDesc, pg_sys};
use std::ffi::c_char;

const TEXT_ALIGNMENT: c_char = pg_sys::TYPALIGN_INT as c_char;

/// Writes rows of one shape.
pub struct Writer {
    outputs: Vec<pg_sys::FmgrInfo>,
    scratch: Scratch,
}

impl Writer {
    pub fn new(shape: pg_sys::TupleDesc) -> Self {
        let shape = unsafe { PgTupleDesc::from_pg_unchecked(shape) };
        let output = |type_oid| unsafe {
            let (mut function, mut varlena) = (pg_sys::InvalidOid, false);
            let mut info = pg_sys::FmgrInfo::default();
            pg_sys::getTypeOutputInfo(type_oid, &mut function, &mut varlena);
            pg_sys::fmgr_info(function, &mut info);
            info
        };
        Self {
            outputs: shape.iter().map(|column| output(column.atttypid)).collect(),
            scratch: Scratch::new(),
        }
    }

    /// The row in the slot, all of whose attributes have been fetched, as a `text[]` that lives until the next row, and how
    /// many bytes that takes.
    pub unsafe fn cells(&mut self, slot: *mut pg_sys::TupleTableSlot) -> (pg_sys::Datum, usize) {
        let Self { outputs, scratch } = self;
        scratch.run(|| unsafe {
            let count = outputs.len();
            let values = std::slice::from_raw_parts((*slot).tts_values, count);
            let mut nulls = std::slice::from_raw_parts((*slot).tts_isnull, count).to_vec();
            let text = |(place, output): (usize, &mut pg_sys::FmgrInfo)| match nulls[place] {
                true => pg_sys::Datum::null(),
                false => pg_sys::cstring_to_text(pg_sys::OutputFunctionCall(output, values[place])).into(),
            };
            let mut texts: Vec<pg_sys::Datum> = outputs.iter_mut().enumerate().map(text).collect();
            let (mut dimension, mut first) = (count as i32, 1);
            let array = pg_sys::construct_md_array(
                texts.as_mut_ptr(),
                nulls.as_mut_ptr(),
                1,
                &mut dimension,
                &mut first,
                pg_sys::TEXTOID,
                -1,
                false,
                TEXT_ALIGNMENT,
            );
            (array.into(), pgrx::varsize_any(array.cast()))
        })
    }
}

/// How the text of a column is read.
struct Input {
    function: pg_sys::FmgrInfo,
    parameter: pg_sys::Oid,
    modifier: i32,
}

/// Reads rows of one shape.
pub struct Reader {
    inputs: Vec<Input>,
    shape: pg_sys::TupleDesc,
    slot: *mut pg_sys::TupleTableSlot,
    scratch: Scratch,
}

impl Reader {
    /// For rows of a shape that lives as long.
    pub fn new(shape: pg_sys::TupleDesc) -> Self {
        let columns = unsafe { PgTupleDesc::from_pg_unchecked(shape) };
        let input = |type_oid, modifier| unsafe {
            let (mut function, mut parameter) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
            let mut info = pg_sys::FmgrInfo::default();
            pg_sys::getTypeInputInfo(type_oid, &mut function, &mut parameter);
            pg_sys::fmgr_info(function, &mut info);
            Input { function: info, parameter, modifier }
        };
        let inputs = columns.iter().map(|column| input(column.atttypid, column.atttypmod)).collect();
        let slot = unsafe { pg_sys::MakeSingleTupleTableSlot(shape, &raw const pg_sys::TTSOpsHeapTuple) };
        Self { inputs, shape, slot, scratch: Scratch::new() }
    }

    /// Shows the row that a `text[]` stands for, whose cells are found at these places, in a slot all of whose attributes
    /// have been fetched.
    pub unsafe fn row(
        &mut self,
        cells: pg_sys::Datum,
        places: &[usize],
        look: impl FnOnce(*mut pg_sys::TupleTableSlot),
    ) {
        let Self { inputs, shape, slot, scratch } = self;
        scratch.run(|| unsafe {
            let (mut texts, mut absent, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
            let array = pg_sys::pg_detoast_datum(cells.cast_mut_ptr());
            pg_sys::deconstruct_array(
                array.cast(),
                pg_sys::TEXTOID,
                -1,
                false,
                TEXT_ALIGNMENT,
                &mut texts,
                &mut absent,
                &mut count,
            );
            let texts = std::slice::from_raw_parts(texts, count as usize);
            let absent = std::slice::from_raw_parts(absent, count as usize);
            // A domain may refuse NULL too.
            let value = |(input, place): (&mut Input, &usize)| {
                let text = match absent[*place] {
                    true => std::ptr::null_mut(),
                    false => pg_sys::text_to_cstring(texts[*place].cast_mut_ptr()),
                };
                pg_sys::InputFunctionCall(&mut input.function, text, input.parameter, input.modifier)
            };
            let mut values: Vec<pg_sys::Datum> = inputs.iter_mut().zip(places).map(value).collect();
            let mut nulls: Vec<bool> = places.iter().map(|place| absent[*place]).collect();
            let tuple = pg_sys::heap_form_tuple(*shape, values.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::ExecStoreHeapTuple(tuple, *slot, false);
            pg_sys::slot_getallattrs(*slot);
            look(*slot);
        });
    }
}
