# SPDX-License-Identifier: Apache-2.0
# What is installed: headers, both libraries, pickle.pc, and the package Pickle for find_package.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Pickle)

install(DIRECTORY include/pickle DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS pickle pickle_static EXPORT PickleTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT PickleTargets NAMESPACE Pickle:: DESTINATION ${package_dir})

configure_package_config_file(cmake/PickleConfig.cmake.in PickleConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor release may break the ABI.
write_basic_package_version_file(PickleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/PickleConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/PickleConfigVersion.cmake
    DESTINATION ${package_dir})

# pkg-config finds the prefix from where pickle.pc lies, so that an installed tree can be moved; not where the directories are
# absolute, as some distributions want them.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
    set(pc_libdir "${CMAKE_INSTALL_FULL_LIBDIR}")
    set(pc_includedir "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
else()
    file(RELATIVE_PATH pc_up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
    string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
    set(pc_prefix "\${pcfiledir}/${pc_up}")
    set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(pickle.pc.in pickle.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pickle.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
