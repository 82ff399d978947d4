# SPDX-License-Identifier: Apache-2.0
# The CMakeLists.txt of a C++ user of the installed package.
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_EXTENSIONS OFF)
find_package(Pickle 0.3 REQUIRED)
add_executable(consumer consumer.cc)
target_compile_options(consumer PRIVATE -Wall -Wextra -Wpedantic -Werror)
target_link_libraries(consumer PRIVATE Pickle::pickle)
add_executable(consumer_static consumer.cc)
target_link_libraries(consumer_static PRIVATE Pickle::pickle_static)
