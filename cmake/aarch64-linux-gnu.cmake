# SPDX-License-Identifier: Apache-2.0
# Cross-compiling for aarch64 with Debian's compiler; PICKLE_CROSS_ROOT is a folder with that architecture's hwloc and OpenSSL.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PICKLE_CROSS_ROOT)

set(ENV{PKG_CONFIG_LIBDIR} "${PICKLE_CROSS_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${PICKLE_CROSS_ROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${PICKLE_CROSS_ROOT}")
set(CMAKE_FIND_ROOT_PATH "${PICKLE_CROSS_ROOT}" /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_C_FLAGS_INIT "-isystem ${PICKLE_CROSS_ROOT}/usr/include/aarch64-linux-gnu")
# Libraries of libraries.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${PICKLE_CROSS_ROOT}/usr/lib/aarch64-linux-gnu,-rpath-link,${PICKLE_CROSS_ROOT}/lib/aarch64-linux-gnu")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${CMAKE_EXE_LINKER_FLAGS_INIT}")
