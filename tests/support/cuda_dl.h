/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmark, a project of its own, and the tests share one implementation: it lies with the former. */
#include "../../bench/cuda_dl.h"
