/* SPDX-License-Identifier: Apache-2.0 */
#include "../../bench/cuda_dl.c"
