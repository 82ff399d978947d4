/* SPDX-License-Identifier: Apache-2.0 */
/** @file pickle.h Everything. */
#ifndef PICKLE_PICKLE_H
#define PICKLE_PICKLE_H

#include "pickle/base.h"
#include "pickle/coll.h"
#include "pickle/comm.h"
#include "pickle/inspect.h"
#include "pickle/mem.h"
#include "pickle/p2p.h"
#include "pickle/stream.h"
#include "pickle/survive.h"

#endif
