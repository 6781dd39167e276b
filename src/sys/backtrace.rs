//! No backtraces and no unwinding: a panic aborts, and a stripped program has no names to
//! show. Without this, std and anyhow have the whole unwinder linked, and with it a part
//! of libc: a twentieth of the program.
#![allow(unsafe_code)]

// SAFETY: The names are those of unwind.h. std calls the first to walk the stack, and is
// told that it ends there (`_URC_END_OF_STACK`), so that nobody calls the second group;
// the third is what a personality routine asks an unwinder, which is not there. Where
// something else does need one, its own symbols take the place of these weak ones.
std::arch::global_asm!(
    ".weak _Unwind_Backtrace",
    "_Unwind_Backtrace:",
    ".weak _Unwind_GetIP, _Unwind_GetIPInfo, _Unwind_GetCFA, _Unwind_FindEnclosingFunction",
    "_Unwind_GetIP:",
    "_Unwind_GetIPInfo:",
    "_Unwind_GetCFA:",
    "_Unwind_FindEnclosingFunction:",
    ".weak _Unwind_GetDataRelBase, _Unwind_GetTextRelBase, _Unwind_GetRegionStart",
    ".weak _Unwind_GetLanguageSpecificData, _Unwind_SetGR, _Unwind_SetIP",
    "_Unwind_GetDataRelBase:",
    "_Unwind_GetTextRelBase:",
    "_Unwind_GetRegionStart:",
    "_Unwind_GetLanguageSpecificData:",
    "_Unwind_SetGR:",
    "_Unwind_SetIP:",
    #[cfg(target_arch = "x86_64")]
    "mov eax, 5",
    #[cfg(target_arch = "aarch64")]
    "mov w0, #5",
    "ret",
);
