# SPDX-License-Identifier: Apache-2.0
# What the library needs, as the interface targets pickle_hwloc, pickle_crypto, pickle_pmix, pickle_cuda, pickle_rdma. libpmix, libcuda
# and libibverbs are opened at run time: only their headers matter here.

foreach(option PICKLE_CUDA PICKLE_PMIX PICKLE_RDMA)
    string(TOUPPER "${${option}}" value)
    if(NOT value MATCHES "^(AUTO|ON|OFF)$")
        message(FATAL_ERROR "${option} is '${${option}}': it must be AUTO, ON or OFF")
    endif()
endforeach()

find_package(PkgConfig)
if(NOT PKG_CONFIG_FOUND)
    message(FATAL_ERROR "pkg-config is needed to find hwloc and libcrypto (Debian: apt-get install pkg-config)")
endif()

# pickle_require(<target> <pkg-config module> <Debian package>)
function(pickle_require target module package)
    pkg_check_modules(${target} QUIET IMPORTED_TARGET ${module})
    if(NOT ${target}_FOUND)
        message(FATAL_ERROR "${module} was not found by pkg-config and is required (Debian: apt-get install ${package})")
    endif()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE PkgConfig::${target})
    message(STATUS "Found ${module} ${${target}_VERSION}")
endfunction()

pickle_require(pickle_hwloc hwloc libhwloc-dev)
pickle_require(pickle_crypto libcrypto libssl-dev)

# PMIx: by pkg-config, else where Debian and Ubuntu keep it.
set(PICKLE_HAVE_PMIX OFF)
add_library(pickle_pmix INTERFACE)
if(NOT PICKLE_PMIX STREQUAL "OFF")
    pkg_check_modules(PMIX QUIET pmix)
    find_path(PICKLE_PMIX_INCLUDE_DIR pmix.h
        HINTS ${PMIX_INCLUDE_DIRS}
        PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib /opt/pmix
        PATH_SUFFIXES pmix2/include pmix/include)
    mark_as_advanced(PICKLE_PMIX_INCLUDE_DIR)
    if(PICKLE_PMIX_INCLUDE_DIR)
        set(PICKLE_HAVE_PMIX ON)
        target_include_directories(pickle_pmix SYSTEM INTERFACE ${PICKLE_PMIX_INCLUDE_DIR} ${PMIX_INCLUDE_DIRS})
        target_compile_definitions(pickle_pmix INTERFACE PICKLE_HAVE_PMIX)
    elseif(PICKLE_PMIX STREQUAL "ON")
        message(FATAL_ERROR "PICKLE_PMIX=ON, but pmix.h was not found (Debian: apt-get install libpmix-dev)")
    else()
        message(STATUS "PMIx was not found: no start by mpirun or srun (Debian: apt-get install libpmix-dev)")
    endif()
endif()

# CUDA: cuda.h, and nvcc for the kernels (or kernels compiled before).
set(PICKLE_HAVE_CUDA OFF)
add_library(pickle_cuda INTERFACE)
if(NOT PICKLE_CUDA STREQUAL "OFF")
    set(cuda_roots $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda /opt/cuda)
    find_program(PICKLE_NVCC nvcc HINTS ${cuda_roots} PATH_SUFFIXES bin)
    if(PICKLE_NVCC)
        get_filename_component(nvcc_real "${PICKLE_NVCC}" REALPATH)
        get_filename_component(nvcc_root "${nvcc_real}/../.." ABSOLUTE)
        list(PREPEND cuda_roots ${nvcc_root})
    endif()
    find_path(PICKLE_CUDA_INCLUDE_DIR cuda.h HINTS ${cuda_roots}
        PATH_SUFFIXES include targets/x86_64-linux/include targets/sbsa-linux/include)
    mark_as_advanced(PICKLE_NVCC PICKLE_CUDA_INCLUDE_DIR)
    if(PICKLE_CUDA_INCLUDE_DIR AND (PICKLE_NVCC OR PICKLE_FATBIN))
        set(PICKLE_HAVE_CUDA ON)
        target_include_directories(pickle_cuda SYSTEM INTERFACE ${PICKLE_CUDA_INCLUDE_DIR})
        target_compile_definitions(pickle_cuda INTERFACE PICKLE_HAVE_CUDA)
    elseif(PICKLE_CUDA STREQUAL "ON")
        message(FATAL_ERROR "PICKLE_CUDA=ON, but the CUDA toolkit was not found (nvcc: '${PICKLE_NVCC}',"
                            " cuda.h: '${PICKLE_CUDA_INCLUDE_DIR}'); set CUDA_HOME")
    else()
        message(STATUS "The CUDA toolkit was not found: no GPUs (set CUDA_HOME where it is)")
    endif()
endif()

# InfiniBand and RoCE: verbs.h.
set(PICKLE_HAVE_RDMA OFF)
add_library(pickle_rdma INTERFACE)
if(NOT PICKLE_RDMA STREQUAL "OFF")
    find_path(PICKLE_VERBS_INCLUDE_DIR infiniband/verbs.h)
    mark_as_advanced(PICKLE_VERBS_INCLUDE_DIR)
    if(PICKLE_VERBS_INCLUDE_DIR)
        set(PICKLE_HAVE_RDMA ON)
        target_include_directories(pickle_rdma SYSTEM INTERFACE ${PICKLE_VERBS_INCLUDE_DIR})
        target_compile_definitions(pickle_rdma INTERFACE PICKLE_HAVE_RDMA)
    elseif(PICKLE_RDMA STREQUAL "ON")
        message(FATAL_ERROR "PICKLE_RDMA=ON, but infiniband/verbs.h was not found (Debian: apt-get install libibverbs-dev)")
    else()
        message(STATUS "infiniband/verbs.h was not found: no RDMA (Debian: apt-get install libibverbs-dev)")
    endif()
endif()
