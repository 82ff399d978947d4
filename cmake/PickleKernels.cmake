# SPDX-License-Identifier: Apache-2.0
# GPU kernels: all .cu files become one fatbin, and that a C file with the two symbols pki_kernels_fatbin[] and
# pki_kernels_fatbin_bytes, hidden in the library.

set(PICKLE_GPU_ARCHITECTURES "80;90;100" CACHE STRING "Architectures of GPUs to compile kernels for; newer ones get PTX of the first")

# Code for those of them that this nvcc knows. The kernels know sm_80 and sm_90 (cells.cuh): code for newer ones comes from sm_90's PTX, which saves
# compiling it once more.
function(pickle_gpu_targets flags)
    execute_process(COMMAND ${PICKLE_NVCC} --list-gpu-code OUTPUT_VARIABLE known OUTPUT_STRIP_TRAILING_WHITESPACE)
    set(result "")
    set(oldest "")
    foreach(arch ${PICKLE_GPU_ARCHITECTURES})
        if(known MATCHES "sm_${arch}(\n|$)")
            set(virtual ${arch})
            if(arch GREATER 90 AND known MATCHES "sm_90(\n|$)")
                set(virtual 90)
            endif()
            list(APPEND result "SHELL:-gencode arch=compute_${virtual},code=sm_${arch}")
            if(NOT oldest)
                set(oldest ${arch})
            endif()
        endif()
    endforeach()
    if(NOT oldest)
        message(FATAL_ERROR "${PICKLE_NVCC} knows none of the architectures ${PICKLE_GPU_ARCHITECTURES} (PICKLE_GPU_ARCHITECTURES)")
    endif()
    list(APPEND result "SHELL:-gencode arch=compute_${oldest},code=compute_${oldest}")
    list(TRANSFORM result REPLACE "^SHELL:" "")
    list(JOIN result " " result)
    separate_arguments(result UNIX_COMMAND "${result}")
    set(${flags} ${result} PARENT_SCOPE)
endfunction()

# The smallest form that this nvcc can make of the embedded code; the same decoder reads all of them.
function(pickle_gpu_compression out)
    execute_process(COMMAND ${PICKLE_NVCC} --help OUTPUT_VARIABLE help ERROR_QUIET)
    if(help MATCHES "--compress-mode")
        set(${out} --compress-mode=size PARENT_SCOPE)
    else()
        set(${out} -Xfatbin -compress-all PARENT_SCOPE)
    endif()
endfunction()

# pickle_embed_kernels(<out: C file> <kernel.cu>...)
function(pickle_embed_kernels out)
    set(fatbin "${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin")
    if(PICKLE_FATBIN)
        set(fatbin "${PICKLE_FATBIN}")
    else()
        set(together "${CMAKE_CURRENT_BINARY_DIR}/kernels.cu")
        set(lines "/* Generated: all kernels as one translation unit. */\n")
        foreach(kernel ${ARGN})
            string(APPEND lines "#include \"${kernel}\"\n")
        endforeach()
        file(CONFIGURE OUTPUT "${together}" CONTENT "${lines}" @ONLY)
        pickle_gpu_targets(targets)
        pickle_gpu_compression(compression)
        add_custom_command(OUTPUT "${fatbin}"
            COMMAND ${PICKLE_NVCC} -fatbin -std=c++17 -O3 ${compression} --threads 0 ${targets}
                    -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/lib
                    -MD -MF kernels.d -o "${fatbin}" "${together}"
            DEPENDS "${together}" ${ARGN}
            DEPFILE "${CMAKE_CURRENT_BINARY_DIR}/kernels.d"
            WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}"
            COMMENT "Compiling the GPU kernels" VERBATIM)
    endif()
    set(PICKLE_FATBIN_PATH "${fatbin}")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/kernels_fatbin.c.in" "${CMAKE_CURRENT_BINARY_DIR}/kernels_fatbin.c" @ONLY)
    set_source_files_properties("${CMAKE_CURRENT_BINARY_DIR}/kernels_fatbin.c" PROPERTIES OBJECT_DEPENDS "${fatbin}")
    set(${out} "${CMAKE_CURRENT_BINARY_DIR}/kernels_fatbin.c" PARENT_SCOPE)
endfunction()
