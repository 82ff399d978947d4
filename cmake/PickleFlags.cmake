# SPDX-License-Identifier: Apache-2.0
# How C is compiled here: the interface target pickle_flags, for the library and its tests.

add_library(pickle_flags INTERFACE)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
target_compile_definitions(pickle_flags INTERFACE _GNU_SOURCE)
target_compile_options(pickle_flags INTERFACE -Wall -Wextra -Wpedantic)
if(PICKLE_WERROR)
    # gcc warns that thread sanitizer does not understand fences: worth reading, no reason to fail.
    target_compile_options(pickle_flags INTERFACE -Werror $<$<C_COMPILER_ID:GNU>:-Wno-error=tsan>)
endif()

if(PICKLE_SANITIZE)
    list(JOIN PICKLE_SANITIZE "," sanitizers)
    target_compile_options(pickle_flags INTERFACE -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
    target_link_options(pickle_flags INTERFACE -fsanitize=${sanitizers})
endif()

if(PICKLE_FUZZER)
    target_compile_options(pickle_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
