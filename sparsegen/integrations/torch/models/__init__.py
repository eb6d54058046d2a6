"""Whole models: conversion, tuning, and what is decided for each layer."""
