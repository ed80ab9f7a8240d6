// The build bundles the tables that Python has too; their types are stated where they are read.
declare module '*.json' {
  const value: unknown;
  export default value;
}
