/* SPDX-License-Identifier: Apache-2.0 */
#include "ptx.h"

/* One thread of a block polls, seldom enough to leave the bus to others. */
const char ptx_spin[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                        ".visible .entry fakecuda_spin(.param .u64 flag)\n{\n"
                        " .reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %rd<3>;\n"
                        " ld.param.u64 %rd1, [flag]; cvta.to.global.u64 %rd2, %rd1;\n"
                        " mov.u32 %r2, %tid.x; setp.ne.u32 %p2, %r2, 0; @%p2 bra ready;\n"
                        "again: ld.volatile.global.u32 %r1, [%rd2]; setp.ne.u32 %p1, %r1, 0; @%p1 bra ready;\n"
                        " nanosleep.u32 1000; bra again;\n"
                        "ready: bar.sync 0; ret;\n}\n";

const char ptx_hold[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                        ".visible .entry fakecuda_hold(.param .u64 flag)\n{\n"
                        " .reg .pred %p, %q; .reg .b32 %v, %i; .reg .b64 %f, %t, %u; .shared .b32 seen;\n"
                        " ld.param.u64 %f, [flag]; cvta.to.global.u64 %f, %f; mov.u32 %i, %tid.x; setp.eq.u32 %q, %i, 0;\n"
                        "look: mov.u64 %u, %globaltimer; add.u64 %u, %u, 50000;\n"
                        "again: mov.u64 %t, %globaltimer; setp.lt.u64 %p, %t, %u; @%p bra again;\n"
                        " @%q ld.volatile.global.u32 %v, [%f]; @%q st.volatile.shared.u32 [seen], %v;\n"
                        " bar.sync 0; ld.volatile.shared.u32 %v, [seen]; bar.sync 0;\n"
                        " setp.eq.u32 %p, %v, 0; @%p bra look;\n"
                        " ret;\n}\n";

/* The last lines keep the loop: no thread ever comes to store. */
const char ptx_burn[] =
    ".version 6.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fakecuda_burn(.param .u64 rounds)\n{\n"
    " .reg .pred %p; .reg .b64 %n, %i, %z; .reg .f32 %a, %b; .reg .b32 %t;\n"
    " ld.param.u64 %n, [rounds]; mov.u64 %i, 0; mov.u32 %t, %tid.x; cvt.rn.f32.u32 %a, %t; mov.f32 %b, 0f3F000000;\n"
    "again: fma.rn.f32 %a, %a, %b, %b; fma.rn.f32 %a, %a, %b, %b; fma.rn.f32 %a, %a, %b, %b; fma.rn.f32 %a, %a, %b, %b;\n"
    " add.u64 %i, %i, 4; setp.lt.u64 %p, %i, %n; @%p bra again;\n"
    " setp.eq.f32 %p, %a, 0fC2280000; mov.u64 %z, 0; @%p st.global.f32 [%z], %a;\n"
    " ret;\n}\n";

const char ptx_stamp[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fakecuda_stamp(.param .u64 table)\n{\n"
    " .reg .pred %p; .reg .b32 %t, %s; .reg .b64 %a, %o, %c, %g;\n"
    " mov.u32 %t, %tid.x; setp.ne.u32 %p, %t, 0; @%p bra ready;\n"
    " ld.param.u64 %a, [table]; cvta.to.global.u64 %a, %a; mov.u32 %s, %smid; mul.wide.u32 %o, %s, 16; add.u64 %a, %a, %o;\n"
    " mov.u64 %c, %clock64; mov.u64 %g, %globaltimer; st.global.v2.u64 [%a], {%c, %g};\n"
    "ready: ret;\n}\n";
