/* Made by wasm/types.mjs from the JSON Schemas in native/cli/schemas. */

/** tessera.inspect/1: The contents of a checkpoint. */
export type InspectDocument = {
  readonly schema: "tessera.inspect/1";
  readonly path: string;
  readonly format: "dcp" | "dcp-safetensors" | "safetensors" | "safetensors-index" | "torch-zip" | "torch-legacy" | "torch-ranks" | "torch-index" | "shards" | "deepspeed" | "deepspeed-universal" | "megatron-dist" | "verl" | "accelerate-fsdp" | "lightning-dist" | "hf-trainer" | "torch-checkpointing" | "json" | "pickle" | "accelerate" | "nemo" | "automodel" | "olmo-core" | "prime-rl" | "diffusers" | "sentence-transformers";
  readonly summary: {
    readonly tensors: number;
    readonly objects: number;
    readonly opaque: number;
    readonly elements: number;
    readonly bytes: number;
    readonly files: number;
    readonly dtypes: Readonly<Record<string, {
      readonly tensors: number;
      readonly elements: number;
      readonly bytes: number;
    }>>;
    readonly parts?: readonly {
      readonly name: string;
      readonly format: string;
      readonly files: number;
      readonly tensors: number;
      readonly objects: number;
    }[];
  };
  readonly metadata: Readonly<Record<string, string>>;
  readonly entries: readonly (({
    readonly fqn: string;
    readonly kind: "tensor";
    readonly dtype: string;
    readonly shape: readonly number[];
    readonly bytes: number;
    readonly parameter?: boolean;
    readonly requires_grad?: boolean;
    readonly mesh?: string;
    readonly placements?: string;
    readonly shares_storage_with?: readonly string[];
    readonly chunks: readonly {
      readonly offsets: readonly number[];
      readonly sizes: readonly number[];
      readonly file: (string) | (null);
      readonly byte_offset: number;
      readonly byte_length: number;
    }[];
    readonly replicas?: readonly {
      readonly offsets: readonly number[];
      readonly sizes: readonly number[];
      readonly file: (string) | (null);
      readonly byte_offset: number;
      readonly byte_length: number;
    }[];
    readonly hash?: {
      readonly algorithm: "sha256" | "xxh3";
      readonly digest: string;
    };
    readonly stats?: {
      readonly min: (number) | (string);
      readonly max: (number) | (string);
      readonly mean: (number) | (string);
      readonly std: (number) | (string);
      readonly nan: number;
      readonly inf: number;
      readonly zero: number;
    };
    readonly type?: undefined;
    readonly inner?: undefined;
    readonly value?: undefined;
    readonly repr?: undefined;
    readonly per_rank?: undefined;
    readonly dtypes?: undefined;
    readonly shapes?: undefined;
  }) | ({
    readonly fqn: string;
    readonly kind: "object" | "opaque";
    readonly type: string;
    readonly dtype?: string;
    readonly shape?: readonly number[];
    readonly inner?: readonly {
      readonly name: string;
      readonly dtype: string;
      readonly shape?: readonly number[];
    }[];
    readonly value?: unknown;
    readonly repr?: string;
    readonly mesh?: string;
    readonly placements?: string;
    readonly chunks?: readonly {
      readonly offsets: readonly number[];
      readonly sizes: readonly number[];
      readonly file: (string) | (null);
      readonly byte_offset: number;
      readonly byte_length: number;
    }[];
    readonly bytes?: undefined;
    readonly parameter?: undefined;
    readonly requires_grad?: undefined;
    readonly shares_storage_with?: undefined;
    readonly replicas?: undefined;
    readonly hash?: undefined;
    readonly stats?: undefined;
    readonly per_rank?: undefined;
    readonly dtypes?: undefined;
    readonly shapes?: undefined;
  }) | ({
    readonly fqn: string;
    readonly kind: "tensor" | "opaque";
    readonly per_rank: true;
    readonly type?: string;
    readonly dtype?: string;
    readonly dtypes?: readonly ((string) | (null))[];
    readonly shapes: readonly ((readonly number[]) | (null))[];
    readonly bytes: number;
    readonly chunks: readonly {
      readonly offsets: readonly number[];
      readonly sizes: readonly number[];
      readonly file: (string) | (null);
      readonly byte_offset: number;
      readonly byte_length: number;
    }[];
    readonly shape?: undefined;
    readonly parameter?: undefined;
    readonly requires_grad?: undefined;
    readonly mesh?: undefined;
    readonly placements?: undefined;
    readonly shares_storage_with?: undefined;
    readonly replicas?: undefined;
    readonly hash?: undefined;
    readonly stats?: undefined;
    readonly inner?: undefined;
    readonly value?: undefined;
    readonly repr?: undefined;
  }))[];
  readonly findings: readonly {
    readonly rule: string;
    readonly level: "error" | "warning" | "note";
    readonly message: string;
    readonly path?: string;
    readonly file?: string;
    readonly byte_offset?: number;
    readonly fqn?: string;
  }[];
};

/** tessera.layout/1: The layout of a checkpoint, to check others against. */
export type LayoutDocument = {
  readonly schema: "tessera.layout/1";
  readonly entries: readonly (({
    readonly fqn: string;
    readonly kind: "tensor";
    readonly dtype: string;
    readonly shape: readonly number[];
    readonly chunks?: readonly {
      readonly offsets: readonly number[];
      readonly sizes: readonly number[];
    }[];
    readonly hash?: {
      readonly algorithm: "sha256" | "xxh3";
      readonly digest: string;
    };
    readonly type?: undefined;
  }) | ({
    readonly fqn: string;
    readonly kind: "object" | "opaque";
    readonly type?: string;
    readonly hash?: {
      readonly algorithm: "sha256" | "xxh3";
      readonly digest: string;
    };
    readonly dtype?: undefined;
    readonly shape?: undefined;
    readonly chunks?: undefined;
  }))[];
  readonly rules?: readonly {
    readonly match: string;
    readonly allow?: readonly ("missing" | "extra" | "dtype" | "shape" | "chunks" | "value")[];
    readonly dtypes?: readonly string[];
  }[];
};

/** tessera.manifest/1: Checksums of all values of a checkpoint, which no resharding changes. */
export type ManifestDocument = {
  readonly schema: "tessera.manifest/1";
  readonly entries: readonly (({
    readonly fqn: string;
    readonly kind: "tensor";
    readonly dtype: string;
    readonly shape: readonly number[];
    readonly hash?: {
      readonly algorithm: "sha256" | "xxh3";
      readonly digest: string;
    };
    readonly type?: undefined;
  }) | ({
    readonly fqn: string;
    readonly kind: "object" | "opaque";
    readonly type?: string;
    readonly hash?: {
      readonly algorithm: "sha256" | "xxh3";
      readonly digest: string;
    };
    readonly dtype?: undefined;
    readonly shape?: undefined;
  }))[];
  readonly rules?: readonly {
    readonly match: string;
    readonly allow?: readonly ("missing" | "extra" | "dtype" | "shape" | "chunks" | "value")[];
    readonly dtypes?: readonly string[];
  }[];
};

/** tessera.findings/1: Findings about checkpoints. */
export type FindingsDocument = {
  readonly schema: "tessera.findings/1";
  readonly findings: readonly {
    readonly rule: string;
    readonly level: "error" | "warning" | "note";
    readonly message: string;
    readonly path?: string;
    readonly file?: string;
    readonly byte_offset?: number;
    readonly fqn?: string;
  }[];
  readonly summary: {
    readonly paths: number;
    readonly errors: number;
    readonly warnings: number;
    readonly notes: number;
    readonly left_out?: number;
    readonly turned_off?: number;
    readonly unlisted?: Readonly<Record<string, number>>;
  };
};

/** tessera.diff/1: The differences between two checkpoints. */
export type DiffDocument = {
  readonly schema: "tessera.diff/1";
  readonly a: string;
  readonly b: string;
  readonly same: boolean;
  readonly added: readonly string[];
  readonly removed: readonly string[];
  readonly changed: readonly {
    readonly fqn: string;
    readonly fqn_b?: string;
    readonly what: readonly ("dtype" | "shape" | "value" | "layout" | "object" | "key")[];
    readonly a: {
      readonly kind: "tensor" | "object" | "opaque";
      readonly dtype?: string;
      readonly shape?: readonly number[];
      readonly chunks?: number;
      readonly type?: string;
      readonly key?: string;
      readonly repr?: string;
    };
    readonly b: {
      readonly kind: "tensor" | "object" | "opaque";
      readonly dtype?: string;
      readonly shape?: readonly number[];
      readonly chunks?: number;
      readonly type?: string;
      readonly key?: string;
      readonly repr?: string;
    };
    readonly differing?: number;
    readonly first?: number;
    readonly max_abs?: (number) | (string);
    readonly max_ulp?: number;
  }[];
  readonly renamed: readonly {
    readonly a: string;
    readonly b: string;
    readonly why: string;
  }[];
  readonly metadata: {
    readonly added: readonly {
      readonly key: string;
      readonly value: string;
    }[];
    readonly removed: readonly {
      readonly key: string;
      readonly value: string;
    }[];
    readonly changed: readonly {
      readonly key: string;
      readonly a: string;
      readonly b: string;
    }[];
  };
  readonly summary: {
    readonly same: number;
    readonly changed: number;
    readonly added: number;
    readonly removed: number;
    readonly renamed: number;
    readonly values_compared: boolean;
    readonly left_out?: number;
    readonly turned_off?: number;
  };
};

/** tessera.plan/1: A reshard or a conversion: what it would read, and what each rank would read, hold and send. */
export type PlanDocument = {
  readonly schema: "tessera.plan/1";
  readonly source: {
    readonly path: string;
    readonly format: string;
    readonly digest: {
      readonly algorithm: "sha256" | "xxh3";
      readonly digest: string;
    };
    readonly files: readonly {
      readonly file: string;
      readonly bytes: number;
      readonly modified?: string;
    }[];
  };
  readonly adapter?: {
    readonly path: string;
    readonly format: string;
    readonly digest: {
      readonly algorithm: "sha256" | "xxh3";
      readonly digest: string;
    };
    readonly files: readonly {
      readonly file: string;
      readonly bytes: number;
      readonly modified?: string;
    }[];
  };
  readonly request: {
    readonly schema: "tessera.request/1";
    readonly command: "convert" | "reshard";
    readonly options: Readonly<Record<string, (boolean) | (number) | (number) | (string) | (readonly string[])>>;
  };
  readonly target: ({
    readonly schema: "tessera.target/1";
    readonly mesh: {
      readonly shape: readonly number[];
      readonly dim_names?: readonly string[];
    };
    readonly rules?: readonly {
      readonly match: string;
      readonly placements?: readonly string[];
      readonly ranks?: readonly number[];
      readonly stage?: {
        readonly dim: string;
        readonly layers: {
          readonly capture: string;
          readonly ranges: readonly (readonly number[])[];
        };
      };
    }[];
    readonly default?: readonly string[];
    readonly strategy?: {
      readonly name: "fsdp1";
      readonly units?: readonly string[];
      readonly ignored?: readonly string[];
      readonly use_orig_params?: boolean;
    };
  }) | (null);
  readonly totals: {
    readonly tensors: number;
    readonly replicated?: number;
    readonly classes: number;
    readonly ranks?: number;
    readonly reads: number;
    readonly bytes: number;
    readonly span_bytes: number;
    readonly largest_read: number;
    readonly held_max?: number;
    readonly peak_memory?: number;
    readonly imbalance?: number;
    readonly read_amplification: number;
    readonly server_seconds?: number;
    readonly assumed_files?: number;
  };
  readonly ranks: readonly {
    readonly held: number;
    readonly read: number;
    readonly received: number;
  }[];
  readonly files: readonly {
    readonly file: (string) | (null);
    readonly reads: number;
    readonly bytes: number;
    readonly first_server?: string;
    readonly stripe_count?: number;
  }[];
  readonly storage?: {
    readonly schema: "tessera.storage/1";
    readonly servers: readonly {
      readonly name?: string;
      readonly bandwidth?: number;
      readonly latency?: number;
    }[];
    readonly bandwidth?: number;
    readonly latency?: number;
    readonly stripe_size?: number;
    readonly stripe_count?: number;
    readonly files?: readonly {
      readonly file: string;
      readonly first?: number;
      readonly servers?: readonly number[];
      readonly stripe_size?: number;
      readonly stripe_count?: number;
    }[];
  };
  readonly servers?: readonly {
    readonly server: string;
    readonly bytes: number;
    readonly seconds: number;
  }[];
  readonly items?: readonly {
    readonly fqn: string;
    readonly dest_rank: number;
    readonly dest_offsets: readonly number[];
    readonly storage_offsets: readonly number[];
    readonly lengths: readonly number[];
    readonly file: (string) | (null);
  }[];
};

/** tessera.fqn/1: Canonical names. */
export type FqnDocument = {
  readonly schema: "tessera.fqn/1";
  readonly by: "modules" | "text";
  readonly names: readonly {
    readonly raw: string;
    readonly fqns: readonly string[];
    readonly removed: readonly {
      readonly component: string;
      readonly why: string;
    }[];
    readonly ambiguity?: string;
  }[];
  readonly collisions: readonly {
    readonly fqn: string;
    readonly raw: readonly string[];
  }[];
  readonly against?: {
    readonly renames: readonly {
      readonly rename: string;
      readonly names: number;
    }[];
    readonly pairs: readonly {
      readonly from: string;
      readonly to: string;
    }[];
    readonly unexpected: readonly string[];
    readonly missing: readonly string[];
  };
};

/** tessera.convert/1: The result of a conversion. */
export type ConvertDocument = {
  readonly schema: "tessera.convert/1";
  readonly source: string;
  readonly destination: string;
  readonly to: "safetensors" | "torch" | "dcp" | "megatron-dist" | "deepspeed-universal" | "ranks";
  readonly dry_run: boolean;
  readonly map?: readonly {
    readonly fqn: string;
    readonly dtype?: string;
    readonly shape?: readonly number[];
    readonly from: readonly {
      readonly fqn: string;
      readonly dtype?: string;
      readonly shape?: readonly number[];
    }[];
    readonly steps: readonly string[];
    readonly or?: string;
  }[];
  readonly dropped?: readonly {
    readonly fqn: string;
    readonly dtype?: string;
    readonly shape?: readonly number[];
  }[];
  readonly published?: boolean;
  readonly work?: {
    readonly units: number;
    readonly found_done: number;
    readonly left: number;
    readonly part?: number;
    readonly parts?: number;
  };
  readonly resumed?: {
    readonly objects: number;
    readonly parts: number;
    readonly bytes: number;
    readonly differing: number;
    readonly uploads_given_up: number;
    readonly uploads_left: number;
  };
  readonly summary: {
    readonly tensors: number;
    readonly objects: number;
    readonly left_out: number;
    readonly cast: number;
    readonly kept?: number;
    readonly copied: number;
    readonly bytes: number;
    readonly seconds: number;
  };
  readonly warnings?: readonly string[];
  readonly files: readonly {
    readonly name: string;
    readonly bytes: number;
  }[];
  readonly entries: readonly {
    readonly fqn: string;
    readonly left_out?: string;
    readonly name?: string;
    readonly dtype?: string;
    readonly cast_from?: string;
    readonly file?: string;
    readonly bytes?: number;
    readonly second_name_of?: string;
    readonly copied?: boolean;
    readonly replicated?: boolean;
    readonly weights_only?: boolean;
  }[];
};

/** tessera.target/1: The target of a reshard: a mesh and placements. */
export type TargetDocument = {
  readonly schema: "tessera.target/1";
  readonly mesh: {
    readonly shape: readonly number[];
    readonly dim_names: readonly string[];
  };
  readonly rules?: readonly {
    readonly match: string;
    readonly placements?: readonly string[];
    readonly ranks?: readonly number[];
    readonly stage?: {
      readonly dim: string;
      readonly layers: {
        readonly capture: string;
        readonly ranges: readonly (readonly number[])[];
      };
    };
  }[];
  readonly default?: readonly string[];
  readonly strategy?: {
    readonly name: "fsdp1";
    readonly units?: readonly string[];
    readonly ignored?: readonly string[];
    readonly use_orig_params?: boolean;
  };
};

/** tessera.storage/1: The servers of a parallel file system, and where a checkpoint's files are on them. */
export type StorageDocument = {
  readonly schema: "tessera.storage/1";
  readonly servers: (number) | (readonly {
    readonly name?: string;
    readonly bandwidth?: number;
    readonly latency?: number;
  }[]);
  readonly bandwidth?: number;
  readonly latency?: number;
  readonly stripe_size?: number;
  readonly stripe_count?: number;
  readonly files?: readonly {
    readonly file: string;
    readonly first?: number;
    readonly servers?: readonly number[];
    readonly stripe_size?: number;
    readonly stripe_count?: number;
  }[];
};

/** tessera.modules/1: A module tree. */
export type ModulesDocument = {
  readonly schema: "tessera.modules/1";
  readonly root: {
    readonly class: string;
    readonly wrapper?: "none" | "ddp" | "fsdp1" | "compiled" | "checkpoint";
    readonly fqn_modifiers?: Readonly<Record<string, string>>;
    readonly parameters?: Readonly<Record<string, {
      readonly shape: readonly number[];
      readonly dtype?: string;
      readonly requires_grad?: boolean;
      readonly id?: (string) | (number) | (boolean) | (null);
      readonly persistent?: boolean;
    }>>;
    readonly buffers?: Readonly<Record<string, {
      readonly shape: readonly number[];
      readonly dtype?: string;
      readonly requires_grad?: boolean;
      readonly id?: (string) | (number) | (boolean) | (null);
      readonly persistent?: boolean;
    }>>;
    readonly extra_state?: boolean;
    readonly children?: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
    readonly flat_param?: ({
      readonly params: readonly {
        readonly fqn: string;
        readonly shape: readonly number[];
      }[];
      readonly shared?: readonly {
        readonly fqn: string;
        readonly of: string;
      }[];
      readonly alignment?: number;
      readonly use_orig_params?: boolean;
    }) | (null);
  };
  readonly groups?: readonly ((readonly string[]) | ({
    readonly params: readonly string[];
  }))[];
};

/** tessera.flat-params/1: The flat parameters of an FSDP1 model. */
export type FlatParamsDocument = {
  readonly schema: "tessera.flat-params/1";
  readonly world_size: number;
  readonly use_orig_params?: boolean;
  readonly files?: readonly string[];
  readonly units: readonly {
    readonly fsdp_module: string;
    readonly raw_name?: (string) | (null);
    readonly params: readonly {
      readonly fqn: string;
      readonly shape: readonly number[];
      readonly requires_grad?: boolean;
    }[];
    readonly numels_with_padding: readonly number[];
    readonly is_padding_mask: readonly boolean[];
    readonly sharding_strategy?: string;
    readonly shared?: readonly {
      readonly fqn: string;
      readonly of: string;
    }[];
  }[];
  readonly param_groups: readonly (readonly string[])[];
  readonly shard_groups?: readonly (readonly number[])[];
};
