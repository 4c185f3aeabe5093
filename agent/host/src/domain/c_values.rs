//! Values that libvirt returns in C: strings and lists of typed parameters.

#![expect(unsafe_code, reason = "libvirt returns pointers")]

use std::{
    ffi::{CStr, c_char, c_int},
    slice,
};

use virt_sys as sys;

use super::{Parameter, ParameterValue};
use crate::document::{MAX_LIST, MAX_NAME};

/// Returns at most [`MAX_NAME`] characters of a C string from libvirt, or an empty string if `text` is null.
///
/// # Safety
/// `text` must be null or end with a zero byte.
pub(super) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().chars().take(MAX_NAME).collect()
}

/// Converts libvirt's typed parameters to [`Parameter`]s.
///
/// # Safety
/// `parameters` must be null or a list of `count` parameters from libvirt with correct types.
pub(super) unsafe fn read_parameters(parameters: sys::virTypedParameterPtr, count: c_int) -> Vec<Parameter> {
    if parameters.is_null() {
        return Vec::new();
    }
    // SAFETY: guaranteed by the caller.
    let list = unsafe { slice::from_raw_parts(parameters, usize::try_from(count).unwrap_or(0)) };
    list.iter().take(MAX_LIST).map(read_parameter).collect()
}

fn read_parameter(parameter: &sys::virTypedParameter) -> Parameter {
    let name: Vec<u8> = parameter
        .field
        .iter()
        .map(|byte| byte.to_ne_bytes()[0])
        .take_while(|byte| *byte != 0)
        .collect();
    let value = &parameter.value;
    // SAFETY: the type determines which field libvirt has filled; a string is null or ends with a zero byte.
    let value = unsafe {
        match parameter.type_.cast_unsigned() {
            sys::VIR_TYPED_PARAM_INT => ParameterValue::Number(value.i.into()),
            sys::VIR_TYPED_PARAM_UINT => ParameterValue::Number(value.ui.into()),
            sys::VIR_TYPED_PARAM_LLONG => ParameterValue::Number(value.l.into()),
            sys::VIR_TYPED_PARAM_ULLONG => ParameterValue::Number(value.ul.into()),
            sys::VIR_TYPED_PARAM_BOOLEAN => ParameterValue::Number(i128::from(value.b != 0)),
            sys::VIR_TYPED_PARAM_STRING => ParameterValue::Text(text(value.s)),
            _ => ParameterValue::Other,
        }
    };
    Parameter {
        name: String::from_utf8_lossy(&name).into_owned(),
        value,
    }
}
