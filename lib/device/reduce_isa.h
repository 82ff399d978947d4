/* SPDX-License-Identifier: Apache-2.0 */
/* All loops of reduce_host.c for one instruction set, named ISA, from the templates. */
#define TYPE int8
#define ELEMENT int8_t
#define WRAPPING uint8_t
#include "device/reduce_type.h"

#define TYPE uint8
#define ELEMENT uint8_t
#define WRAPPING uint8_t
#include "device/reduce_type.h"

#define TYPE int32
#define ELEMENT int32_t
#define WRAPPING uint32_t
#include "device/reduce_type.h"

#define TYPE uint32
#define ELEMENT uint32_t
#define WRAPPING uint32_t
#include "device/reduce_type.h"

#define TYPE int64
#define ELEMENT int64_t
#define WRAPPING uint64_t
#include "device/reduce_type.h"

#define TYPE uint64
#define ELEMENT uint64_t
#define WRAPPING uint64_t
#include "device/reduce_type.h"

#define TYPE f32
#define ELEMENT float
#define WRAPPING float
#include "device/reduce_type.h"

#define TYPE f64
#define ELEMENT double
#define WRAPPING double
#include "device/reduce_type.h"

#define TYPE f16
#define ELEMENT uint16_t
#ifdef F16_LOAD_LANES
#define LOAD_LANES F16_LOAD_LANES
#define STORE_LANES F16_STORE_LANES
#endif
#include "device/reduce_convert.h"

#define TYPE bf16
#define ELEMENT uint16_t
#ifdef BF16_LOAD_LANES
#define LOAD_LANES BF16_LOAD_LANES
#define STORE_LANES BF16_STORE_LANES
#endif
#include "device/reduce_convert.h"

#define TYPE f8e4m3
#define ELEMENT uint8_t
#include "device/reduce_convert.h"

#define TYPE f8e5m2
#define ELEMENT uint8_t
#include "device/reduce_convert.h"
